"""Questions and guesses with the sentences that they must get, in Python and from the script of a page."""

from shardlab.explorers import guess

MEMORY = guess.number("How much memory?", answer=2797.3, unit="GB", name="memory", why="Four parts.")
COUNT = guess.number("How many GPUs?", answer=1, unit=("GPU", "GPUs"), name="count", within=2)
SHARE = guess.number("What share?", answer=18.25, unit="%", name="share")
WORK = guess.number("How many FLOPs?", answer=3.143e23, unit="FLOPs", name="work", within=1.5)
LARGER = guess.choice(
    'Which is larger, <b> or "c"?', ["the states", 'the "a" & <b>'], answer="the states", name="larger", why="1 < 2"
)

OFF = "Your guess is too {} by a factor of {}."
MORE = "the answer is 2,800 GB."
CASES = [
    (MEMORY, "300", f"You guessed 300 GB; {MORE} {OFF.format('small', '9.3')}"),
    (MEMORY, "30", f"You guessed 30 GB; {MORE} {OFF.format('small', '93')}"),
    (MEMORY, ".5", f"You guessed 0.5 GB; {MORE} {OFF.format('small', '5,600')}"),
    (MEMORY, "1,000,000", f"You guessed 1,000,000 GB; {MORE} {OFF.format('large', '360')}"),
    (MEMORY, "28e3 GB", f"You guessed 28,000 GB; {MORE} {OFF.format('large', '10')}"),
    (MEMORY, "1E-5", f"You guessed 1e-5 GB; {MORE} {OFF.format('small', '280,000,000')}"),
    (MEMORY, "123456789", f"You guessed 123,456,789 GB; {MORE} {OFF.format('large', '44,000')}"),
    (MEMORY, "123456789012", f"You guessed 1.23e11 GB; {MORE} {OFF.format('large', '44,000,000')}"),
    (MEMORY, "1234.5", f"You guessed 1,230 GB; {MORE} {OFF.format('small', '2.3')}"),
    (MEMORY, "1.125", f"You guessed 1.13 GB; {MORE} {OFF.format('small', '2,500')}"),  # a tie, rounded upwards
    (MEMORY, " 2,600 ", f"You guessed 2,600 GB; {MORE} Your guess is within 10 %."),
    (MEMORY, "3050.", f"You guessed 3,050 GB; {MORE} Your guess is within 10 %."),
    (MEMORY, "2,800GB", "You guessed 2,800 GB. That is right."),
    (COUNT, "1", "You guessed 1 GPU. That is right."),
    (COUNT, "1 GPU", "You guessed 1 GPU. That is right."),
    (COUNT, "2 GPUs", "You guessed 2 GPUs; the answer is 1 GPU. Your guess is within a factor of 2."),
    (COUNT, "0.5", "You guessed 0.5 GPUs; the answer is 1 GPU. Your guess is within a factor of 2."),
    (COUNT, "2.01", f"You guessed 2.01 GPUs; the answer is 1 GPU. {OFF.format('large', '2')}"),
    (SHARE, "50 %", f"You guessed 50 %; the answer is 18.3 %. {OFF.format('large', '2.7')}"),
    (SHARE, "17", "You guessed 17 %; the answer is 18.3 %. Your guess is within 10 %."),
    (WORK, "2.5e23", "You guessed 2.5e23 FLOPs; the answer is 3.14e23 FLOPs. Your guess is within 50 %."),
    (WORK, "1e12", f"You guessed 1e12 FLOPs; the answer is 3.14e23 FLOPs. {OFF.format('small', '3.1e11')}"),
    (LARGER, "the states", 'You guessed "the states". That is right.'),
    (LARGER, 'the "a" & <b>', 'You guessed "the "a" & <b>". The answer is "the states".'),
]

TYPE = "Type a number above zero, such as 300 {}, 2.8, 1,000 or 1e3."
NO_NUMBERS = ["", " ", "many", "GB", "0", "0.00", "-3", "2,8", "1,00", "1 000", "3 4", "1e", "e5", "1e999", "2.8 TB"]
BAD = [
    *((MEMORY, given, TYPE.format("GB")) for given in NO_NUMBERS),
    (COUNT, "1 node", TYPE.format("GPUs")),
    (LARGER, "", "Choose one of the answers first."),
]
