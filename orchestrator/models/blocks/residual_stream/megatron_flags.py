"""The residual stream: flags that no field has."""

from orchestrator.models.blocks.flags import BlockFlags, FlagsWithoutField

FLAGS = BlockFlags(
    without_field=(
        FlagsWithoutField(
            "apply-residual-connection-post-layernorm fp32-residual-connection",
            "this variant of the model is not in this version",
            "training",
        ),
    ),
    not_imported={"apply_residual_connection_post_layernorm": "residuals behind the norm"},
)
