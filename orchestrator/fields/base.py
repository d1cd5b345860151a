"""What every section of a spec has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of a job spec. Unknown keys are refused; the docstring below a field documents it
    (docstrings.py).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        validate_default=False,
        allow_inf_nan=False,
    )
