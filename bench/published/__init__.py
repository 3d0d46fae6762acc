"""What others published and only benches use: layouts that ran or did not, and products of matrices, a row a line.

`shardlab.costs.published` reads these tables as it reads its own.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
