//! Python's string methods and Jinja's string filters, for strings with marks.
//!
//! The methods here return one or more strings, and keep the marks balanced. Methods that only
//! inspect a string get it without marks; they come from `minijinja-contrib`, and so do those of
//! dicts and lists.

use std::ops::Range;

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::checks::{pay_format, pay_join, seen, spend};
use super::environment::{MAX_WIDTH, Session, check_format, session};
use super::marks::Marked;

/// Calls `method` of `value`, if the value's own type does not define it.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(string) = value.as_str() else {
        // `count` compares.
        args.iter().chain([value].into_iter().filter(|_| method == "count")).try_for_each(seen)?;
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    let session = session(state)?;
    spend(string.len())?;
    let marked = Marked::parse(string, session.marks)?;
    let text = &*marked.text;
    Ok(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let (left, right) = (method != "rstrip", method != "lstrip");
            Value::from(marked.slice(stripped(text, chars, left, right)))
        }
        "split" => split(&session, &marked, args)?,
        "splitlines" => {
            let (keep_ends, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep_ends = keep_ends.or(kwargs.get("keepends")?).unwrap_or(false);
            lines(text, keep_ends).into_iter().map(|line| marked.slice(line)).collect()
        }
        "replace" => replace(&session, &marked, args)?,
        "upper" | "lower" | "title" | "capitalize" => {
            let () = from_args(args)?;
            Value::from(recase(&marked, method))
        }
        "format" => {
            check_format(string)?;
            pay_format(string.matches('{').count(), MAX_WIDTH, args)?;
            pycompat::unknown_method_callback(state, value, method, args)?
        }
        // Like `format`, it concatenates strings, which leaves marks intact.
        "join" => {
            pay_join(args.first().unwrap_or(&Value::UNDEFINED), string.len())?;
            pycompat::unknown_method_callback(state, value, method, args)?
        }
        _ => {
            let plain = |arg: &Value| arg.as_str().map(|arg| Value::from(&*session.plain(arg)));
            let args: Vec<Value> =
                args.iter().map(|arg| plain(arg).unwrap_or_else(|| arg.clone())).collect();
            pycompat::unknown_method_callback(state, &Value::from(text), method, &args)?
        }
    })
}

/// The filter `trim`: a value's text without surrounding white space, or without surrounding
/// `chars`.
pub(super) fn trim(
    state: &mut State<'_, '_>,
    value: &Value,
    chars: Option<&str>,
) -> Result<Value, Error> {
    let args: Vec<Value> = chars.into_iter().map(Value::from).collect();
    call(state, &as_string(value), "strip", &args)
}

/// The filter `length`: the number of characters or items of a value.
pub(super) fn length(state: &mut State<'_, '_>, value: &Value) -> Result<usize, Error> {
    if let Some(string) = value.as_str() {
        let session = session(state)?;
        spend(string.len())?;
        return Ok(session.plain(string).chars().count());
    }
    let unsized_ = || format!("a value of type {} has no length", value.kind());
    value.len().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, unsized_()))
}

/// The filter `title`. It detects the start of a word differently from the method.
pub(super) fn title(state: &mut State<'_, '_>, value: &Value) -> Result<Value, Error> {
    let string = value.to_string();
    let session = session(state)?;
    spend(string.len())?;
    Ok(Value::from(recase(&Marked::parse(&string, session.marks)?, "title filter")))
}

/// A filter that equals the method of the same name, applied to the value's text.
pub(super) fn filter(
    method: &'static str,
) -> impl Fn(&mut State<'_, '_>, &Value, Rest<Value>) -> Result<Value, Error> {
    move |state, value, args| call(state, &as_string(value), method, &args)
}

fn as_string(value: &Value) -> Value {
    if value.kind() == ValueKind::String { value.clone() } else { Value::from(value.to_string()) }
}

/// White space as Python's `str` methods define it: Unicode's and four separators.
fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\x1c'..='\x1f')
}

fn stripped(text: &str, chars: Option<&str>, left: bool, right: bool) -> Range<usize> {
    let drop = |char: char| chars.map_or(is_space(char), |chars| chars.contains(char));
    let rest = if left { text.trim_start_matches(drop) } else { text };
    let start = text.len() - rest.len();
    start..start + if right { rest.trim_end_matches(drop).len() } else { rest.len() }
}

fn split(session: &Session, marked: &Marked<'_>, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?).map(|separator| session.plain(separator));
    let limit = limit.or(kwargs.get("maxsplit")?);
    kwargs.assert_all_used()?;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let text = &*marked.text;
    let (mut parts, mut start) = (Vec::new(), 0);
    match separator.as_deref() {
        Some("") => {
            return Err(Error::new(ErrorKind::InvalidOperation, "split by an empty string"));
        }
        Some(separator) => {
            for (at, _) in text.match_indices(separator).take(limit) {
                parts.push(marked.slice(start..at));
                start = at + separator.len();
            }
            parts.push(marked.slice(start..text.len()));
        }
        None => {
            start = stripped(text, None, true, false).start;
            while start < text.len() {
                let rest = &text[start..];
                let cut = rest.find(is_space).filter(|_| parts.len() < limit);
                let length = cut.unwrap_or(rest.len());
                parts.push(marked.slice(start..start + length));
                start += length + stripped(&rest[length..], None, true, false).start;
            }
        }
    }
    Ok(parts.into_iter().collect())
}

fn replace(session: &Session, marked: &Marked<'_>, args: &[Value]) -> Result<Value, Error> {
    let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
    let (text, old) = (&*marked.text, session.plain(old));
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let (mut string, mut start) = (String::new(), 0);
    for (at, _) in text.match_indices(&*old).take(count) {
        spend(new.len())?;
        string.push_str(&marked.slice(start..at));
        string.push_str(new);
        start = at + old.len();
    }
    string.push_str(&marked.slice(start..text.len()));
    Ok(Value::from(string))
}

fn recase(marked: &Marked<'_>, to: &str) -> String {
    let mut starts_word = true;
    let mut by_char = |piece: &str| {
        let mut string = String::with_capacity(piece.len());
        for char in piece.chars() {
            if starts_word {
                string.extend(char.to_uppercase());
            } else {
                string.extend(char.to_lowercase());
            }
            starts_word = match to {
                "title" => !char.is_alphabetic(),
                "title filter" => is_space(char) || "-({[<".contains(char),
                _ => false,
            };
        }
        string
    };
    match to {
        "upper" => marked.map(marked.all(), str::to_uppercase),
        "lower" => marked.map(marked.all(), str::to_lowercase),
        _ => marked.map(marked.all(), &mut by_char),
    }
}

/// The lines of `text`, as defined by Python's `splitlines`.
fn lines(text: &str, keep_ends: bool) -> Vec<Range<usize>> {
    let is_end = |char: char| matches!(char, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let (mut lines, mut start) = (Vec::new(), 0);
    while let Some((length, end)) = text[start..].char_indices().find(|&(_, char)| is_end(char)) {
        let at = start + length;
        let next = if text[at..].starts_with("\r\n") { at + 2 } else { at + end.len_utf8() };
        lines.push(start..if keep_ends { next } else { at });
        start = next;
    }
    if start < text.len() {
        lines.push(start..text.len());
    }
    lines
}
