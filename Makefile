# The developer's habits. Users need only cargo, see README.md.
.PHONY: check test golden

# What CI runs.
check:
	.ci/run

test:
	cargo test --workspace

# Records what transformers computes; needs torch and transformers, see the scripts' headers.
golden:
	python3 tools/golden.py
	python3 tools/golden_prompts.py
