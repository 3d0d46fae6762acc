"""How it looks: data in, plotly figure out. Nothing here computes; `style` is the look they share."""
