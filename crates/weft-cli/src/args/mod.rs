//! Commands and flags, with the names of llama.cpp and of vLLM.

mod cache;
mod chunk;
mod compare;
mod device;
mod embed;
mod examples;
mod quantize;
mod remote;
mod serve;
mod speculate;

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::{Args, Parser, Subcommand};
use weft_core::chunk::{Repair, Reuse};

use crate::bench::BenchArgs;
use crate::progress::Bars;
use crate::size::{self, Seed};

pub(crate) use self::cache::CacheArgs;
pub(crate) use self::chunk::{
    AddArgs, ChunkArgs, ChunkCommand, ExportArgs, GcArgs, ImportArgs, KeyArgs, ListChunksArgs,
    PinArgs, RmArgs, ShowChunkArgs, TrustArgs, WarmArgs, WhichArgs,
};
pub(crate) use self::compare::CompareArgs;
pub(crate) use self::device::{DeviceArgs, DeviceKind, ExpertsAt, Kernels, Quantize};
pub(crate) use self::embed::EmbedArgs;
pub(crate) use self::quantize::QuantizeArgs;
pub(crate) use self::remote::{PullChunksArgs, PushArgs, RemoteArgs, RemoteTrustArgs, ThereArgs};
pub(crate) use self::serve::{Alias, KeepLoaded, ServeArgs};
pub(crate) use self::speculate::SpeculateArgs;

/// The whole command line.
#[derive(Parser)]
#[command(name = "weft", version = env!("WEFT_VERSION"))]
#[command(about = "LLM inference for one user on one machine")]
#[command(propagate_version = true, after_help = examples::WEFT)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Print details: the device, the memory, the self-test
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Answer a question about documents
    #[command(after_help = examples::ASK)]
    #[command(override_usage = "weft ask [OPTIONS] [MODEL] [FILE]... QUESTION")]
    Ask(Box<AskArgs>),
    /// Answer one prompt
    #[command(after_help = examples::RUN)]
    #[command(override_usage = "weft run [OPTIONS] [MODEL] PROMPT")]
    Run(RunArgs),
    /// Talk with a model
    #[command(after_help = examples::CHAT, override_usage = "weft chat [OPTIONS] [MODEL] [FILE]...")]
    Chat(ChatArgs),
    /// Answer like `ask`, then compare with an answer computed from scratch
    #[command(after_help = examples::VERIFY)]
    #[command(override_usage = "weft verify [OPTIONS] [MODEL] [FILE]... QUESTION")]
    Verify(Box<AskArgs>),
    /// Measure how far a model, such as a quantised one, is from another
    #[command(after_help = examples::COMPARE, override_usage = compare::USAGE)]
    Compare(Box<CompareArgs>),
    /// Manage chunks, texts that are computed once: register, list, warm, pin, remove, export
    #[command(after_help = examples::CHUNK)]
    Chunk(Box<ChunkArgs>),
    /// Print the embeddings of texts, one list of numbers per line
    #[command(after_help = examples::EMBED)]
    Embed(Box<EmbedArgs>),
    /// Serve one or several models over HTTP, and a chat page
    #[command(after_help = examples::SERVE)]
    Serve(Box<ServeArgs>),
    /// List your running servers and their models
    #[command(after_help = examples::PS)]
    Ps(PsArgs),
    /// End a server after its running answers
    #[command(after_help = examples::STOP)]
    Stop(StopArgs),
    /// Print a model's dimensions, size and memory
    #[command(after_help = examples::SHOW)]
    Show(ShowArgs),
    /// List the bundled model and those in the hub cache
    #[command(after_help = examples::LIST)]
    List(ListArgs),
    /// Download a model into the hub cache
    #[command(after_help = examples::PULL)]
    Pull(PullArgs),
    /// Delete models from the hub cache
    #[command(after_help = examples::RM)]
    Rm(RmModelArgs),
    /// Write a model with 8 or 4 bits per weight: compressed-tensors or GGUF
    #[command(after_help = examples::QUANTIZE)]
    Quantize(QuantizeArgs),
    /// Print or change the settings in config.toml
    #[command(after_help = examples::CONFIG)]
    Config(ConfigArgs),
    /// Measure the speed, and compare it with the limits of this machine
    #[command(after_help = examples::BENCH)]
    Bench(Box<BenchArgs>),
    /// Check this machine: device, memory, cache, self-test
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
}

#[derive(Args)]
pub(crate) struct AskArgs {
    /// The model, if --model is not given; documents; the question, in quotes. Files may stand on
    /// either side of the question
    #[arg(value_name = "[MODEL] [FILE]... QUESTION", num_args = 1.., required = true)]
    pub(crate) words: Vec<String>,
    /// Document to answer from: a file, a registered chunk, or `-` for stdin; may be given several
    /// times. If no document is named, a pipe or a file on stdin is one
    #[arg(long, value_name = "FILE|ID", action = clap::ArgAction::Append)]
    pub(crate) context: Vec<String>,
    /// How KV rows of documents are reused: exact (after the same documents), anchored (after the
    /// same system prompt, in any order; approximate) or isolated (anywhere; approximate)
    #[arg(long, value_name = "HOW", default_value_t = Reuse::Exact)]
    pub(crate) reuse: Reuse,
    /// Which tokens of moved documents are recomputed: none, link:K (the first K of each), blend:R
    /// (the share R that deviates most at layer 1) or blend:R@L (at layer L)
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
    pub(crate) remote: RemoteArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) speculate: SpeculateArgs,
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
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Whether the flag named the model, rather than the environment or a file
    #[arg(skip)]
    pub(crate) model_by_flag: bool,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) speculate: SpeculateArgs,
    /// Read the prompt, or a text before it, from a file, or `-` for stdin
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
    /// The model, if --model is not given, and documents for the first message
    #[arg(value_name = "MODEL|FILE", num_args = 0..)]
    pub(crate) words: Vec<String>,
    /// Document for the first message: a file or a registered chunk; may be given several times
    #[arg(long, value_name = "FILE|ID", action = clap::ArgAction::Append)]
    pub(crate) context: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) speculate: SpeculateArgs,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// A folder, a GGUF file, `org/name[:TAG][@revision]`, or a name like qwen3:0.6b (default: the
    /// bundled demo model)
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
    /// `org/name[:TAG][@revision]`, or a name like qwen3:0.6b
    #[arg(value_name = "MODEL")]
    pub(crate) name: String,
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Args)]
pub(crate) struct RmModelArgs {
    /// The models: `org/name`, or a name like qwen3:0.6b
    #[arg(value_name = "MODEL", num_args = 1.., required = true)]
    pub(crate) names: Vec<String>,
    /// Delete without asking
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print all settings and where each comes from
    Show,
    /// Set a flag for all later commands
    Set(SetArgs),
    /// Remove a setting
    Unset(UnsetArgs),
    /// Print the path of the config file
    Path,
}

#[derive(Args)]
pub(crate) struct SetArgs {
    /// The flag's long name, such as ctx-size
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    /// Its value; several for a flag that may be given several times
    #[arg(value_name = "VALUE", num_args = 1.., required = true, allow_hyphen_values = true)]
    pub(crate) values: Vec<String>,
}

#[derive(Args)]
pub(crate) struct UnsetArgs {
    /// The flag's long name
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
}

#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Also compile, test and time the GPU's kernels for a model, so that its first start is quick
    #[arg(long, value_name = "MODEL")]
    pub(crate) warm: Option<String>,
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
    /// A folder, a GGUF file, `org/name[:TAG][@revision]`, or a name like qwen3:0.6b (default: the
    /// bundled demo model)
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Tokens of context, prompt and answer together (like 32k; default: 8192, or less if the model
    /// has fewer positions)
    #[arg(short, long, visible_alias = "max-model-len",
          value_name = "TOKENS", value_parser = size::parse_count)]
    pub(crate) ctx_size: Option<usize>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Quantise the weights while loading
    #[arg(long, value_enum, value_name = "FORM")]
    pub(crate) quantize: Option<Quantize>,
    /// Never use the network
    #[arg(long)]
    pub(crate) offline: bool,
    /// Load the model even if your `weft serve` has it; for `serve`: do not serve other commands
    #[arg(long)]
    pub(crate) no_resident: bool,
    /// Print only the answer and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The model that drafts its answers, for commands that answer
    #[arg(skip)]
    pub(crate) draft: Option<String>,
    /// What is shown while the model is opened; made when it is first needed
    #[arg(skip)]
    pub(crate) bars: OnceLock<Bars>,
}

impl ModelArgs {
    /// What is shown while the model is opened.
    pub(crate) fn bars(&self) -> &Bars {
        self.bars.get_or_init(|| Bars::new(self.quiet))
    }
}

/// Settings of the prompt.
#[derive(Args)]
pub(crate) struct PromptArgs {
    /// The system prompt: a text, `@FILE`, or a registered system chunk
    #[arg(long, value_name = "TEXT|@FILE|ID")]
    pub(crate) system: Option<String>,
    /// Let the model reason before it answers (default: the model's own)
    #[arg(long, overrides_with = "no_think")]
    pub(crate) think: bool,
    /// Answer immediately, without reasoning
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
    /// Maximum number of tokens to generate (default, and -1: as many as the context holds)
    #[arg(short = 'n', long, value_name = "TOKENS", value_parser = size::parse_limit)]
    pub(crate) max_tokens: Option<usize>,
    /// Sampling temperature; 0 always takes the most likely token (default of this and the next six
    /// flags: the model's own)
    #[arg(long, visible_alias = "temp", value_name = "T")]
    pub(crate) temperature: Option<f32>,
    /// Sample from the K most likely tokens (0: from all)
    #[arg(long, value_name = "K", value_parser = size::parse_top_k)]
    pub(crate) top_k: Option<usize>,
    /// Sample from the most likely tokens with this total probability
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Sample from tokens with at least this share of the largest probability
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Divide the logits of tokens in the prompt or the answer by X (1: off)
    #[arg(long, visible_alias = "repeat-penalty", value_name = "X")]
    pub(crate) repetition_penalty: Option<f32>,
    /// Lower the logits of tokens in the answer by X (0: off)
    #[arg(long, value_name = "X")]
    pub(crate) presence_penalty: Option<f32>,
    /// Lower the logits of tokens by X for each time they occur in the answer (0: off)
    #[arg(long, value_name = "X")]
    pub(crate) frequency_penalty: Option<f32>,
    /// Seed of the sampler: the same seed gives the same answer (default, and -1: a new one for
    /// each answer)
    #[arg(short, long, value_name = "N", value_parser = size::parse_seed)]
    pub(crate) seed: Option<Seed>,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Continue after end tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}
