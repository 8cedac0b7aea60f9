"""Partially equivalent mutants with automatic corrections (PET, OSDI'21).

    Conv(x, w)  ->  Conv(two images side by side, w)     equal but for the columns where the images meet
                ->  the same, with these columns computed by the original's expression: an ordinary equation

`subprogram` finds what is mutated, `candidate` enumerates programs, `mutant_search` keeps those that
compute most elements, `compare_boxes` decides in which boxes, `correct_mutant` adds the rest.
"""

from tensaurus.finders.mutate.mutation_finder import Mutate

__all__ = ["Mutate"]
