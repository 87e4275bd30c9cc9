//! The result of a comparison as a table, as JSON with everything that repeats it, and as CSV.

use serde::Serialize;
use serde_json::json;
use weft_core::compare::Summary;
use weft_core::model::Model;
use weft_core::weights::Forms;

use crate::args::{ModelArgs, Quantize};
use crate::bench::{Format, machine};
use crate::models;
use crate::size;

/// One of the two that are compared.
#[derive(Serialize)]
pub(super) struct Subject {
    /// The model's name, or the file of its distributions.
    name: String,
    /// The form that its matrices were quantised to while loading.
    quantize: Option<String>,
    /// Bytes of its weights in memory.
    weight_bytes: Option<u64>,
}

impl Subject {
    pub(super) fn of_model(args: &ModelArgs, form: Option<Quantize>, model: &Model) -> Self {
        let forms = Forms::of(&*model.weights, &model.config);
        Self {
            name: models::short_name(args.model.as_deref()),
            quantize: form.map(|form| form.to_string()),
            weight_bytes: Some(forms.total_bytes(&model.config, model.config.dtype)),
        }
    }

    pub(super) fn of_file(name: &str) -> Self {
        Self { name: name.to_owned(), quantize: None, weight_bytes: None }
    }

    fn describe(&self) -> String {
        let form = self.quantize.as_ref().map(|form| format!(", {form}")).unwrap_or_default();
        let bytes = self.weight_bytes.map(|bytes| format!(" ({})", size::bytes(bytes)));
        format!("{}{form}{}", self.name, bytes.unwrap_or_default())
    }
}

pub(super) struct Report {
    pub(super) a: Option<Subject>,
    /// `None` if A's distributions were only written to a file.
    pub(super) b: Option<Subject>,
    /// The file with the text or its tokens.
    pub(super) text: Option<String>,
    /// Tokens of the whole text.
    pub(super) n_tokens: usize,
    /// Tokens of a window.
    pub(super) window: usize,
    pub(super) n_windows: usize,
    pub(super) summary: Summary,
}

impl Report {
    pub(super) fn in_format(&self, format: Format) -> String {
        match format {
            Format::Table => self.table(),
            Format::Json => format!("{:#}\n", self.json()),
            Format::Csv => self.csv(),
        }
    }

    fn table(&self) -> String {
        let Summary { tokens, perplexity_a_least, .. } = self.summary;
        let describe =
            |subject: &Option<Subject>| subject.as_ref().map(Subject::describe).unwrap_or_default();
        let text = format!(
            "{} in {} of {}; {tokens} scored",
            size::plural(self.n_tokens, "token"),
            size::plural(self.n_windows, "window"),
            self.window
        );
        let mut rows = vec![("A", describe(&self.a)), ("text", text)];
        if self.b.is_none() {
            rows.push(("perplexity", format!("{perplexity_a_least:.4}")));
        } else {
            let Summary { kl_mean, kl_error, kl_median, kl_p99, kl_max, same_top, .. } =
                self.summary;
            rows.insert(1, ("B", describe(&self.b)));
            rows.extend([
                ("KL of B from A", format!("mean {kl_mean:.3e} ± {kl_error:.1e}")),
                ("", format!("median {kl_median:.3e}, p99 {kl_p99:.3e}, max {kl_max:.3e}")),
                ("same top token", format!("{:.3} %", 100.0 * same_top)),
                ("perplexity", perplexity(&self.summary)),
            ]);
        }
        rows.iter().map(|(name, value)| format!("{name:<14}  {value}\n")).collect()
    }

    /// The result, with the facts that a run file must have.
    fn json(&self) -> serde_json::Value {
        json!({
            "weft_version": env!("CARGO_PKG_VERSION"),
            "commit": machine::commit(),
            "debug_build": cfg!(debug_assertions),
            "date": machine::now(),
            "command": machine::command(),
            "machine": machine::Machine::this(),
            "model": { "a": self.a, "b": self.b },
            "text": self.text,
            "text_tokens": self.n_tokens,
            "window_tokens": self.window,
            "windows": self.n_windows,
            "result": self.summary,
        })
    }

    fn csv(&self) -> String {
        let Summary {
            tokens,
            kl_mean,
            kl_error,
            kl_median,
            kl_p99,
            kl_max,
            same_top,
            n_cut_a,
            perplexity_a,
            perplexity_a_least,
            perplexity_b,
        } = self.summary;
        let perplexity_a =
            perplexity_a.map_or("null".to_owned(), |perplexity| perplexity.to_string());
        let name = |subject: &Option<Subject>| {
            let describe = subject.as_ref().map(Subject::describe).unwrap_or_default();
            format!("\"{}\"", describe.replace('"', "\"\""))
        };
        format!(
            "a,b,tokens,kl_mean,kl_error,kl_median,kl_p99,kl_max,same_top,perplexity_a,\
             perplexity_b,n_cut_a,perplexity_a_least\n\
             {},{},{tokens},{kl_mean},{kl_error},{kl_median},{kl_p99},{kl_max},{same_top},\
             {perplexity_a},{perplexity_b},{n_cut_a},{perplexity_a_least}\n",
            name(&self.a),
            name(&self.b)
        )
    }
}

/// Both perplexities, or what is known of A's.
fn perplexity(summary: &Summary) -> String {
    let Summary { tokens, n_cut_a, perplexity_a_least: least, perplexity_b: b, .. } = *summary;
    match summary.perplexity_a {
        Some(a) => format!("A {a:.4}, B {b:.4} ({:+.2} %)", 100.0 * (b / a - 1.0)),
        None => format!(
            "B {b:.4}; A at least {least:.4} ({n_cut_a} of {} are below e^-16, which the file \
             cannot hold)",
            size::plural(tokens, "token")
        ),
    }
}
