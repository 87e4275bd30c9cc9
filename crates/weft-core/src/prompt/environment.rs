//! The Jinja environment of chat templates, set up like that of transformers.
//!
//! It defines filters, functions and limits, and the [`Session`] that they share during one
//! rendering.

use std::borrow::Cow;
use std::error::Error as _;
use std::sync::Arc;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, StringInput, ValueOrKwargs};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, Value, escape_formatter, filters,
};

use super::checks::{self, pay_format, seen, spend};
use super::marks::{self, Marks};
use super::{PromptError, clock, json, methods};

/// Instructions that a template may execute, checks included. Real templates need a few hundred per
/// message.
pub(super) const MAX_FUEL: u64 = 10_000_000;
/// Columns that a template may indent or pad to.
pub(super) const MAX_WIDTH: usize = 1000;
/// Name of the compiled template.
pub(super) const NAME: &str = "chat_template";
/// The variable that holds the session. No template can write a name with a space.
pub(super) const SESSION: &str = "the session";

/// The state of one rendering, for filters and methods.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) marks: Option<Marks>,
    /// The same for all renderings of a conversation, because their texts are compared.
    pub(super) now: SystemTime,
}

impl Object for Session {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

impl Session {
    /// `string` without marks.
    pub(super) fn plain<'t>(&self, string: &'t str) -> Cow<'t, str> {
        marks::plain(self.marks, string)
    }
}

/// The session of a running template.
pub(super) fn session(state: &State<'_, '_>) -> Result<Arc<Session>, Error> {
    let session = state.lookup(SESSION).and_then(|value| value.downcast_object());
    session.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "there is no session"))
}

/// An error of this module, wrapped in an error of the interpreter.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error("{0}")]
    Raised(String),
    #[error("more than {0} bytes")]
    Worked(u64),
}

/// The syntax of chat templates.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// The environment of a template.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| AutoEscape::None);
    // Debug information would copy the conversation into error messages.
    env.set_debug(false);
    env.set_fuel(Some(MAX_FUEL));
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, state, value| {
        seen(value)?;
        escape_formatter(out, state, value)
    });
    env.remove_global("debug");
    env.add_function("raise_exception", |state: &State, message: &str| {
        let message = session(state)?.plain(message).into_owned();
        let error = Error::new(ErrorKind::InvalidOperation, message.clone());
        Err::<Value, _>(error.with_source(Cause::Raised(message)))
    });
    env.add_function("strftime_now", |state: &State, format: &str| {
        Ok::<_, Error>(clock::strftime(session(state)?.now, format))
    });
    env.add_filter("tojson", |state: &State, value: &Value, kwargs: Kwargs| {
        let session = session(state)?;
        let json = json::to_json(session.marks, value, &kwargs)?;
        Ok::<_, Error>(json)
    });
    add_bounded_filters(&mut env);
    env.add_filter("trim", methods::trim);
    env.add_filter("length", methods::length);
    env.add_filter("count", methods::length);
    env.add_filter("title", methods::title);
    env.add_filter("lines", methods::filter("splitlines"));
    for name in ["upper", "lower", "capitalize", "replace", "split"] {
        env.add_filter(name, methods::filter(name));
    }
    // As in Python: `none` has no items, and strings and dicts are sequences too.
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("sequence", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    checks::add(&mut env);
    env
}

/// Filters that would write as many columns or items as they are asked for.
fn add_bounded_filters(env: &mut Environment<'static>) {
    env.add_filter(
        "indent",
        |value: StringInput<'_>,
         width: Option<usize>,
         first: Option<bool>,
         blank: Option<bool>,
         kwargs: Kwargs| {
            let columns = width.or(kwargs.peek("width")?).unwrap_or_default();
            check_width(columns)?;
            let n_lines = value.as_str().matches('\n').count() + 1;
            spend(value.as_str().len() + n_lines.saturating_mul(columns))?;
            filters::indent(value, width, first, blank, kwargs)
        },
    );
    env.add_filter("format", |state: &mut State, format: &Value, args: Rest<ValueOrKwargs>| {
        let text = format.as_str().unwrap_or_default();
        check_format(text)?;
        let values: Vec<Value> = args.0.iter().map(|arg| (**arg).clone()).collect();
        pay_format(text.matches('%').count(), MAX_WIDTH, &values)?;
        filters::format(state, format, args)
    });
    // No chat template has columns.
    env.remove_filter("batch");
    env.remove_filter("slice");
}

/// Refuses a width that only a fault or an attack asks for.
pub(super) fn check_width(width: usize) -> Result<(), Error> {
    if width <= MAX_WIDTH {
        return Ok(());
    }
    let why = format!("a width of {width} columns is beyond the limit of {MAX_WIDTH}");
    Err(Error::new(ErrorKind::InvalidOperation, why))
}

/// The same for every number in a format string; a width from the arguments (`*`) is refused.
pub(super) fn check_format(format: &str) -> Result<(), Error> {
    for number in format.split(|char: char| !char.is_ascii_digit()) {
        check_width(if number.is_empty() { 0 } else { number.parse().unwrap_or(usize::MAX) })?;
    }
    let is_flag = |char: char| char.is_ascii_digit() || "#- +.".contains(char);
    if format.split('%').skip(1).any(|rest| rest.trim_start_matches(is_flag).starts_with('*')) {
        let why = "a width from the arguments is not supported";
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    Ok(())
}

/// Converts an error of the interpreter into one of this module.
pub(super) fn explain(error: &Error) -> PromptError {
    let mut source = error.source();
    while let Some(cause) = source {
        match cause.downcast_ref() {
            Some(Cause::Raised(message)) => return PromptError::Raised(message.clone()),
            Some(&Cause::Worked(limit)) => {
                let what = "the number of bytes that the chat template processes";
                return PromptError::Limit { what, limit };
            }
            None => {}
        }
        source = cause.source();
    }
    let line = error.line().unwrap_or(1);
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.kind() {
        ErrorKind::SyntaxError => PromptError::Syntax { line, reason },
        ErrorKind::OutOfFuel => PromptError::Limit {
            what: "the number of instructions that the chat template runs",
            limit: MAX_FUEL,
        },
        _ => PromptError::Failed { line, reason },
    }
}
