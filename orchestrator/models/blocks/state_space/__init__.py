"""The state space layer of Mamba-2 (Dao & Gu 2024)."""
