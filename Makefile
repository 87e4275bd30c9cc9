# The developer's habits. Users need only cargo, see README.md.
.PHONY: check test golden eval

# What CI runs.
check:
	.ci/run

test:
	cargo test --workspace

# Records what transformers computes; needs torch and transformers, see the scripts' headers.
golden:
	python3 tools/golden.py
	python3 tools/golden_prompts.py

# Answers the bundled model's 1,000 held-out questions on this machine's CPU.
eval:
	cargo run --release -p weft-cpu --example eval_tiny -- 1000 assets/weft-tiny/eval-cpu.json
