"""Figures: functions from data to plotly figures. They compute nothing; `style` is their look."""
