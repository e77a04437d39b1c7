"""All experiments with their usual sizes, one after another, on one core.

python -m mallob_py.experiments
"""

from mallob_py.experiments import growth, matching

if __name__ == "__main__":
    growth.run()
    matching.run()
