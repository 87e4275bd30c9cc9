//! Commands and flags, with the names of llama.cpp and of vLLM.

mod cache;
mod chunk;
mod serve;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use weft_core::chunk::{Repair, Reuse};

use crate::bench::BenchArgs;
use crate::size;

pub(crate) use self::cache::CacheArgs;
pub(crate) use self::chunk::{
    AddArgs, ChunkArgs, ChunkCommand, ExportArgs, GcArgs, ImportArgs, ListChunksArgs, PinArgs,
    RmArgs, ShowChunkArgs, WarmArgs, WhichArgs,
};

pub(crate) use self::serve::ServeArgs;

/// The whole command line.
#[derive(Parser)]
#[command(name = "weft", version = env!("WEFT_VERSION"))]
#[command(about = "LLM inference for one user on one machine")]
#[command(disable_help_subcommand = true, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Answer a question about documents
    Ask(Box<AskArgs>),
    /// Answer one prompt
    Run(RunArgs),
    /// Talk with a model
    Chat(ChatArgs),
    /// Answer like `ask`, then compare with an answer computed from scratch
    Verify(Box<AskArgs>),
    /// Manage chunks, texts that are computed once: register, list, warm, pin, remove, export
    Chunk(Box<ChunkArgs>),
    /// Serve OpenAI's API over HTTP, and a chat page
    Serve(Box<ServeArgs>),
    /// List your running servers
    Ps(PsArgs),
    /// End a server after its running answers
    Stop(StopArgs),
    /// Print a model's dimensions, size and memory
    Show(ShowArgs),
    /// List the models in the hub cache
    List(ListArgs),
    /// Download a model into the hub cache
    Pull(PullArgs),
    /// Measure the speed, and compare it with the limits of this machine
    Bench(Box<BenchArgs>),
    /// Check this machine: device, memory, cache, self-test
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

#[derive(Args)]
pub(crate) struct AskArgs {
    /// The model, if --model is not given; documents; the question, in quotes. Files may stand on
    /// either side of it
    #[arg(value_name = "[MODEL] [FILE]... QUESTION", num_args = 1.., required = true)]
    pub(crate) words: Vec<String>,
    /// Document to answer from: a file, a registered chunk, or `-` for stdin; may be given several
    /// times. A pipe or a file on stdin is a document without this flag too
    #[arg(long, value_name = "FILE|ID", action = clap::ArgAction::Append)]
    pub(crate) context: Vec<String>,
    /// How KV rows of documents are reused: exact (after the same documents), anchored (after the
    /// same system prompt, in any order; approximate) or isolated (anywhere; approximate)
    #[arg(long, value_name = "HOW", default_value_t = Reuse::Exact)]
    pub(crate) reuse: Reuse,
    /// Which tokens of moved documents are recomputed: none, link:K (the first K of each) or
    /// blend:R (the share R that deviates most)
    #[arg(long, value_name = "WHAT", default_value_t = Repair::None)]
    pub(crate) repair: Repair,
    /// Show where each part of the context came from, and how much attention it got
    #[arg(long)]
    pub(crate) stats: bool,
    /// Compute the answer again from scratch, and print the differences
    #[arg(long)]
    pub(crate) verify: bool,
    /// Whether the flag named the model, rather than the environment or a file
    #[arg(skip)]
    pub(crate) model_by_flag: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Print the answer and its statistics as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// The model, if --model is not given, then the prompt, in quotes. One word or text alone is
    /// the prompt
    #[arg(value_name = "[MODEL] PROMPT", num_args = 0..)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Whether the flag named the model, rather than the environment or a file
    #[arg(skip)]
    pub(crate) model_by_flag: bool,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Read the prompt, or a text before it, from a file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Continue the prompt as it is, without a chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print the answer and its statistics as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ChatArgs {
    /// The model, if --model is not given
    #[arg(value_name = "MODEL")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// A folder, or `org/name[@revision]`
    #[arg(value_name = "MODEL")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct PsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct StopArgs {
    /// The server's model or process number, if there are several (see `weft ps`)
    #[arg(value_name = "NAME|PID")]
    pub(crate) which: Option<String>,
}

#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct PullArgs {
    /// `org/name[@revision]`
    #[arg(value_name = "MODEL")]
    pub(crate) name: String,
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// The model and its device.
#[derive(Args, Clone, Default)]
pub(crate) struct ModelArgs {
    /// A folder, or `org/name[@revision]`
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Tokens of context, prompt and answer together (like 8192 or 32k)
    #[arg(short, long, visible_alias = "max-model-len",
          value_name = "TOKENS", value_parser = size::parse_count)]
    pub(crate) ctx_size: Option<usize>,
    /// Device
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto)]
    pub(crate) device: DeviceKind,
    /// Kernels
    #[arg(long, value_enum, default_value_t = Kernels::Auto)]
    pub(crate) kernels: Kernels,
    /// Threads of the CPU device (default: all cores)
    #[arg(short, long, value_name = "N", value_parser = size::parse_threads)]
    pub(crate) threads: Option<usize>,
    /// Never use the network
    #[arg(long)]
    pub(crate) offline: bool,
    /// Load the model even if a `weft serve` of yours has it; in `serve`: serve HTTP alone
    #[arg(long)]
    pub(crate) no_resident: bool,
    /// Print only the answer and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceKind {
    /// The GPU if there is one, else the CPU
    #[default]
    Auto,
    /// An NVIDIA GPU; an error if there is none
    Cuda,
    /// The CPU
    Cpu,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kernels {
    /// The fastest that passes its self-test
    #[default]
    Auto,
    /// One persistent CUDA kernel for many tokens
    Persistent,
    /// One CUDA graph per token
    Graph,
    /// One launch per op
    Ops,
    /// Plain loops that define every op; slow
    Reference,
}

/// Settings of the prompt.
#[derive(Args)]
pub(crate) struct PromptArgs {
    /// The system prompt: a text, `@FILE`, or a registered system chunk
    #[arg(long, value_name = "TEXT|@FILE|ID")]
    pub(crate) system: Option<String>,
    /// Let the model reason before it answers
    #[arg(long, overrides_with = "no_think")]
    pub(crate) think: bool,
    /// Answer at once, without reasoning
    #[arg(long, overrides_with = "think")]
    pub(crate) no_think: bool,
}

impl PromptArgs {
    /// Whether the model should reason; `None` leaves it to the template.
    pub(crate) fn thinking(&self) -> Option<bool> {
        match (self.think, self.no_think) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

/// Sampling. Defaults come from the model's generation_config.json.
#[derive(Args, Default)]
pub(crate) struct SamplingArgs {
    /// Maximum number of tokens to generate
    #[arg(short = 'n', long, value_name = "TOKENS",
          value_parser = size::parse_count)]
    pub(crate) max_tokens: Option<usize>,
    /// Sampling temperature; 0 always takes the most likely token
    #[arg(long, visible_alias = "temp", value_name = "T")]
    pub(crate) temperature: Option<f32>,
    /// Sample from the K most likely tokens (0: from all)
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Sample from the most likely tokens with this total probability
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Sample from tokens with at least this share of the largest probability
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Divide the logits of tokens in the prompt or the answer
    #[arg(long, visible_alias = "repeat-penalty", value_name = "X")]
    pub(crate) repetition_penalty: Option<f32>,
    /// Lower the logits of tokens in the answer
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Lower the logits of tokens by their number in the answer
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Seed of the sampler: the same seed gives the same answer
    #[arg(short, long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Continue after end tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}
