"""The paper's convergence analysis as a tool: its theorems, what they need to know, and what they say."""
