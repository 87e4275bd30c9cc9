//! The end of each command's help: examples, and where else flags can be set.

/// Examples, further lines if there are some, then the other sources of flags.
macro_rules! help {
    ($($line:literal)* $(; $($more:literal)*)?) => {
        concat!(
            "Examples:\n",
            $("  ", $line, "\n",)*
            $("\n", $($more, "\n",)*)?
            "\nMost flags can also be set by WEFT_* in the environment (WEFT_CTX_SIZE=32k) or in\n\
             config.toml (ctx-size = \"32k\"): see `weft config`."
        )
    };
}

pub(super) const WEFT: &str = help! {
    "weft                                            a demo, offline"
    "weft ask notes.txt \"Who signs?\"                 a question about a document"
    "weft run qwen3:0.6b \"Why is the sky blue?\"      a model of the hub, downloaded once"
    "weft chat qwen3:0.6b --context notes.txt"
    "weft serve qwen3:0.6b --open                    a page and an API on this machine"
    ;
    "Exit codes: 0 done, 1 failed, 2 a mistake in the command or a file that does not exist,"
    "3 the model is not here, 4 too little memory, 5 no usable GPU, 70 a fault in weft, 130 Ctrl-C"
};
pub(super) const ASK: &str = help! {
    "weft ask notes.txt \"Who signs?\""
    "git diff | weft ask qwen3:0.6b \"What changed?\""
    "weft ask --stats --system \"Answer in one word.\" --context *.txt \"Who rules Nusonix?\""
};
pub(super) const RUN: &str = help! {
    "weft run qwen3:0.6b \"Why is the sky blue?\""
    "weft run qwen3:0.6b -f notes.txt \"Sum this up.\""
    "weft run -m ./my-model --raw \"Once upon a time\""
};
pub(super) const CHAT: &str = help! {
    "weft chat qwen3:0.6b --no-think"
    "weft chat qwen3:0.6b --context notes.txt --system \"Answer briefly.\""
};
pub(super) const VERIFY: &str = help! {
    "weft verify --reuse anchored --context minutes.txt handbook.txt \"Who signs?\""
};
pub(super) const COMPARE: &str = help! {
    "weft compare qwen3:0.6b model-Q4_K_M.gguf --text wiki.txt"
    "weft compare qwen3:0.6b qwen3:0.6b --quantize-b int4 --text wiki.txt"
    "weft compare qwen3:0.6b --text wiki.txt --save-base base.bin"
    "weft compare --base base.bin model-Q8_0.gguf --output json"
};
pub(super) const CHUNK: &str = help! {
    "weft chunk add handbook.txt        then: weft ask --context handbook \"Who signs?\""
    "weft chunk warm handbook           compute it before somebody waits for it"
    "weft chunk rm --older-than 30d"
    "weft chunk push handbook --remote s3://team/weft --remote-key team.key"
    "weft chunk export handbook handbook.chunk --key team.key    see `weft chunk key`"
};
pub(super) const SERVE: &str = help! {
    "weft serve qwen3:0.6b --open"
    "weft serve Qwen/Qwen3-0.6B --ctx-size 32k --port 9000"
    "weft serve qwen3:0.6b qwen3:4b --alias gpt-4o=qwen3:4b      each is loaded on first use"
    "WEFT_API_KEY=secret weft serve --host 0.0.0.0"
};
pub(super) const PS: &str = help! { "weft ps" "weft ps --json" };
pub(super) const STOP: &str = help! {
    "weft stop                          if one server is running"
    "weft stop qwen3:0.6b"
};
pub(super) const SHOW: &str = help! { "weft show qwen3:0.6b --ctx-size 32k" };
pub(super) const LIST: &str = help! { "weft list --json" };
pub(super) const PULL: &str = help! { "weft pull qwen3:0.6b" "weft pull Qwen/Qwen3-0.6B@main" };
pub(super) const RM: &str = help! { "weft rm qwen3:0.6b" "weft rm -y Qwen/Qwen3-0.6B" };
pub(super) const EMBED: &str = help! {
    "weft embed -m Qwen/Qwen3-Embedding-0.6B \"Piranul has 49 bridges.\" \"A cat sleeps.\""
    "weft embed -m Qwen/Qwen3-Embedding-0.6B --dimensions 256 <lines.txt >vectors.jsonl"
};
pub(super) const QUANTIZE: &str = help! {
    "weft quantize qwen3:0.6b -o qwen3-int4              a folder, for vLLM and transformers too"
    "weft quantize qwen3:0.6b -o qwen3.gguf --form q4_0  a file, for llama.cpp too"
    "weft run ./qwen3-int4 \"Why is the sky blue?\""
};
pub(super) const CONFIG: &str = help! {
    "weft config set model qwen3:0.6b"
    "weft config set stop END STOP      a flag that may be given several times"
    "weft config show"
};
pub(super) const BENCH: &str = help! {
    "weft bench                                      a short run, random weights"
    "weft bench -m qwen3:0.6b -d 0,4096 -b 1,2,4,8 -r 5"
    "weft bench first-token --save run.json"
    "weft bench speculate --save run.json && weft bench plot run.json --out run.svg"
};
pub(super) const DOCTOR: &str = help! { "weft doctor" };
pub(super) const COMPLETIONS: &str =
    help! { "weft completions bash >~/.local/share/bash-completion/completions/weft" };
