//! `weft compare A B --text FILE`: how far the distributions of model B are from those of model A.
//!
//! Both models read the same tokens, window by window, each window from scratch. Every token of a
//! window's second half is compared. Few rows of logits are in memory at a time. A's rows may also
//! come from a file of llama.cpp's format, or be written to one.

mod base;
mod report;

use std::path::Path;
use std::process::ExitCode;

use weft_core::compare::{Comparison, Distribution, NotFinite, scored};
use weft_core::engine::ScoredRows;
use weft_core::model::Model;
use weft_core::tokenizer::{Tokenizer, TokenizerError};

use self::base::{Base, Saving};
use self::report::{Report, Subject};
use crate::answer::print;
use crate::args::{CacheArgs, CompareArgs, ModelArgs, Quantize};
use crate::error::CliError;
use crate::input;
use crate::load::{self, Loaded};
use crate::terminal;

/// Tokens of a window, as in llama.cpp.
const WINDOW: usize = 512;
/// The shortest window whose second half has a token to score.
const LEAST_WINDOW: usize = 4;

pub(crate) fn run(args: &CompareArgs) -> Result<ExitCode, CliError> {
    let (a, b) = names(args)?;
    let base = args.base.as_deref().map(Base::open).transpose()?;
    let window = base.as_ref().map_or(args.window.unwrap_or(WINDOW), Base::window);
    if window < LEAST_WINDOW {
        return Err(CliError::Usage(format!(
            "--ctx-size {window} leaves nothing to score; give {LEAST_WINDOW} or more"
        )));
    }
    let open = |name: Option<&str>, form| name.map(|name| Opened::new(name, form, args, window));
    let (a, b) = (open(a, args.quantize_a).transpose()?, open(b, args.quantize_b).transpose()?);
    let mut tokens = match (&base, &a, &b) {
        (Some(base), _, Some(b)) => base.tokens_for(&b.model)?,
        (_, Some(a), b) => read(args, &a.model, b.as_ref().map(|b| &b.model))?,
        _ => return Err(usage()),
    };
    let n_tokens = tokens.len();
    let n_windows = (n_tokens / window).min(args.windows.unwrap_or(usize::MAX));
    if n_windows == 0 {
        return Err(CliError::Usage(format!(
            "the text has {n_tokens} tokens and a window {window}; give a longer text, or lower \
             --ctx-size"
        )));
    }
    tokens.truncate(n_windows * window);
    let reader = a.as_ref().or(b.as_ref()).ok_or_else(usage)?;
    let bos = reader.model.tokenizer.bos().first().copied();
    let subject = |opened: &Opened| opened.subject();
    let subject_a = base.as_ref().map(Base::subject).or(a.as_ref().map(subject));
    let subjects = (subject_a, b.as_ref().map(subject));
    let mut sources = (Source::new(base, a, args, (&tokens, window))?, None);
    sources.1 = b.map(Opened::load).transpose()?;

    let mut comparison = Comparison::default();
    let bar = terminal::bar(args.quiet, tokens.len() as u64, "comparing");
    for tokens in tokens.chunks_exact(window) {
        // A window begins like a text. llama.cpp replaces its first token, so that is done here
        // too.
        let mut tokens = tokens.to_vec();
        tokens[0] = bos.unwrap_or(tokens[0]);
        compare(&mut sources, &tokens, &mut comparison)?;
        bar.inc(window as u64);
        bar.set_message(format!("KL {:.2e}", comparison.mean()));
    }
    bar.finish_and_clear();
    sources.0.finish()?;
    let (a, b) = subjects;
    let text = args.text.as_ref().or(args.base.as_ref()).map(|path| path.display().to_string());
    let report = Report { a, b, text, n_tokens, window, n_windows, summary: comparison.summary() };
    print(&report.in_format(args.output))?;
    if let Some(file) = &args.save_base {
        terminal::note(args.quiet, &format!("wrote {}", file.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn usage() -> CliError {
    CliError::Usage(
        "name two models and a text (A B --text FILE), one model and both files (A --text FILE \
         --save-base FILE), or a file and a model (--base FILE B)"
            .to_owned(),
    )
}

/// The names of A and B.
fn names(args: &CompareArgs) -> Result<(Option<&str>, Option<&str>), CliError> {
    match (&args.models[..], args.base.is_some(), args.text.is_some(), args.save_base.is_some()) {
        ([a, b], false, true, _) => Ok((Some(a), Some(b))),
        ([a], false, true, true) if args.quantize_b.is_none() => Ok((Some(a), None)),
        ([b], true, false, false) => Ok((None, Some(b))),
        _ => Err(usage()),
    }
}

/// A model whose weights are not loaded yet.
struct Opened {
    model: Model,
    form: Option<Quantize>,
    args: ModelArgs,
}

impl Opened {
    fn new(
        name: &str,
        form: Option<Quantize>,
        args: &CompareArgs,
        window: usize,
    ) -> Result<Self, CliError> {
        let args = ModelArgs { quantize: form, ..args.model(name, window) };
        let model = load::open(None, &args)?;
        let most = model.config.max_positions;
        if window > most {
            return Err(weft::Error::ContextTooLong { wanted: window, most }.into());
        }
        Ok(Self { model, form, args })
    }

    fn subject(&self) -> Subject {
        Subject::of_model(&self.args, self.form, &self.model)
    }

    fn load(self) -> Result<Loaded, CliError> {
        let cache = CacheArgs {
            contexts: Some(1),
            ram_cache: Some(0),
            disk_cache: Some(0),
            no_cache: true,
            ..CacheArgs::default()
        };
        let _shown = self.args.bars().begin();
        load::load_model(self.model, &self.args, &cache)
    }
}

/// The tokens of the text, if they are the same for both models.
fn read(args: &CompareArgs, a: &Model, b: Option<&Model>) -> Result<Vec<u32>, CliError> {
    let path = args.text.as_deref().ok_or_else(usage)?;
    let text = if path == Path::new("-") { input::read_stdin()? } else { input::read_file(path)? };
    let encode = |tokenizer: &Tokenizer| {
        let long = |error: TokenizerError| CliError::Usage(format!("{}: {error}", path.display()));
        tokenizer.encode_with_bos(&text).map_err(long)
    };
    let tokens = encode(&a.tokenizer)?;
    let Some(b) = b else { return Ok(tokens) };
    let reason = if a.config.vocab != b.config.vocab {
        Some(format!("A's vocabulary has {} tokens and B's {}", a.config.vocab, b.config.vocab))
    } else if let Some(id) = other_token(&a.tokenizer, &b.tokenizer) {
        let text = |model: &Model| model.tokenizer.decode(&[id], false);
        Some(format!("token {id} is {:?} in A and {:?} in B", text(a), text(b)))
    } else if encode(&b.tokenizer)? != tokens {
        Some("they cut the text into different tokens".to_owned())
    } else {
        None
    };
    match reason {
        None => Ok(tokens),
        Some(reason) => Err(CliError::Usage(format!(
            "A and B have different tokenizers: {reason}; take two forms of one model"
        ))),
    }
}

/// The first id that is a token of both and has different bytes.
fn other_token(a: &Tokenizer, b: &Tokenizer) -> Option<u32> {
    (0..a.vocab_size().min(b.vocab_size())).find(|id| {
        let (a, b) = (a.token_bytes(*id), b.token_bytes(*id));
        a.is_some() && b.is_some() && a != b
    })
}

/// Where A's distributions come from.
enum Source {
    Model(Box<Loaded>, Option<Saving>),
    File(Base),
}

impl Source {
    fn new(
        base: Option<Base>,
        a: Option<Opened>,
        args: &CompareArgs,
        (tokens, window): (&[u32], usize),
    ) -> Result<Self, CliError> {
        let Some(a) = a else { return base.map(Self::File).ok_or_else(usage) };
        // The file is made before the weights are loaded: it may be refused.
        let vocab = a.model.config.vocab;
        let saving = |path: &Path| Saving::new(path, window, vocab, tokens);
        let saving = args.save_base.as_deref().map(saving).transpose()?;
        Ok(Self::Model(Box::new(a.load()?), saving))
    }

    fn finish(self) -> Result<(), CliError> {
        match self {
            Self::Model(_, Some(saving)) => saving.finish(),
            _ => Ok(()),
        }
    }
}

/// Compares the tokens of a window's second half.
fn compare(
    (a, b): &mut (Source, Option<Loaded>),
    tokens: &[u32],
    comparison: &mut Comparison,
) -> Result<(), CliError> {
    let from = scored(tokens.len()).start;
    let mut rows_b = match b {
        Some(b) => Some(b.engine.score_text(tokens, from)?),
        None => None,
    };
    let mut rows_a: Box<dyn FnMut() -> Result<Distribution, CliError>> = match a {
        Source::File(base) => Box::new(|| base.read()),
        Source::Model(a, saving) => {
            let mut rows = a.engine.score_text(tokens, from)?;
            Box::new(move || {
                let row = next(&mut rows)?;
                saving.as_mut().map_or(Ok(()), |saving| saving.write(&row))?;
                Ok(Distribution::of_logits(&row))
            })
        }
    };
    for token in &tokens[from..] {
        let of_a = rows_a()?;
        let of_b = match &mut rows_b {
            Some(rows) => &Distribution::of_logits(&next(rows)?),
            None => &of_a,
        };
        comparison.add(*token, &of_a, of_b).map_err(|NotFinite { after }| {
            CliError::Unhealthy(format!(
                "a model's logits are no numbers after {after} scored tokens; its weights are \
                 damaged, or its numbers too large for the format that it computes in"
            ))
        })?;
    }
    Ok(())
}

fn next(rows: &mut ScoredRows<'_>) -> Result<Vec<f32>, CliError> {
    Ok(rows.next().expect("a row for each scored token")?)
}
