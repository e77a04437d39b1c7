"""Published numbers of the original system (Sanders & Schreiber, Euro-Par 2022), for comparison."""

from __future__ import annotations

#: P Table 1, m = 1536: number of jobs at a time -> (theta, theta / theta_opt, eta)
UNIFORM = {
    3: (0.159, 0.991, 0.990),
    6: (0.318, 0.994, 0.990),
    12: (0.636, 0.993, 0.991),
    24: (1.271, 0.993, 0.992),
    48: (2.543, 0.993, 0.993),
    96: (5.071, 0.990, 0.993),
    192: (10.141, 0.990, 0.995),
    384: (20.114, 0.982, 0.995),
    768: (39.972, 0.976, 0.992),
}

#: P Fig. 4, m = 384: priority -> (mean volume, mean response in s)
PRIORITIES = {
    0.01: (1.0, 229.6),
    0.02: (3.0, 198.0),
    0.03: (5.0, 189.1),
    0.05: (8.1, 171.3),
    0.1: (17.1, 161.2),
    0.2: (35.2, 146.0),
    0.3: (52.4, 138.6),
    0.5: (87.5, 133.1),
    1.0: (176.6, 130.0),
}

#: P Table 2: reuse -> (worker creation ratio WCR: median, max, total; context switches: median, mean; number
#: of processed jobs; response time in s)
REUSE = {
    "none": (1.43, 33.0, 2.14, 136, 138.2, 5923, 153.40),
    "basic": (1.40, 31.5, 2.07, 134, 135.3, 5921, 153.89),
    "full": (1.25, 24.5, 1.80, 130, 131.8, 5939, 152.33),
}

#: raw data of P Fig. 6: way of matching -> median latency in ms (of a root, of a further worker)
LATENCIES_MS = {
    "routing tree": (10.25, 7.08),
    "random walk h=10": (10.86, 7.69),
    "random walk h=100": (18.8, 12.5),
    "random walk h=1000": (48.9, 9.5),
    "random walk h=inf": (45.4, 9.3),
}
#: the latencies of P Fig. 6 without reuse of workers
LATENCIES_WITHOUT_REUSE_MS = (2.20, 7.31)

#: P 5.3: mean time [s] between arrivals of one client's jobs -> busy share of the median PE
BUSY_MEDIAN = {2.5: 0.9985, 5.0: 0.9977, 10.0: 0.9908}
