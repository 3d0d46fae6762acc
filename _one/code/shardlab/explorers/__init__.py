"""Explorers, which put sliders over costs and figures, and questions with a guess."""
