//! The filter `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`,
//! keys in their order, nothing escaped for HTML.
//!
//! If a value contains content of the conversation, its whole JSON becomes content: the quotes and
//! braces around a user's string are data too.

use minijinja::value::{DynObject, Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::checks::{ITEM_BYTES, spend};
use super::environment::check_width;
use super::marks::{Marks, plain};
use super::values;

/// Deeper values are refused, because each level uses stack.
const MAX_DEPTH: usize = 200;

struct Writer {
    json: String,
    marks: Option<Marks>,
    has_content: bool,
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
}

/// The JSON of `value`, between marks if anything in it is marked.
pub(super) fn to_json(
    marks: Option<Marks>,
    value: &Value,
    kwargs: &Kwargs,
) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    check_width(indent.unwrap_or_default())?;
    let separators: Option<(String, String)> = match kwargs.get::<Option<Value>>("separators")? {
        Some(pair) => {
            let part = |index| pair.get_item_by_index(index).map(|part| part.to_string());
            Some((part(0)?, part(1)?))
        }
        None => None,
    };
    let default_item = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) =
        separators.unwrap_or_else(|| (default_item.to_owned(), ": ".to_owned()));
    let mut writer = Writer {
        json: String::new(),
        marks,
        has_content: false,
        indent,
        item_separator,
        key_separator,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(match marks.filter(|_| writer.has_content) {
        Some(marks) => marks.wrap(&writer.json),
        None => writer.json,
    })
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // Paid before it is written: one list may occur a thousand times.
        let indent = self.indent.map_or(1, |indent| 1 + indent * depth);
        spend(indent + value.as_str().map_or(ITEM_BYTES, str::len))?;
        let refuse = |why: String| Err(Error::new(ErrorKind::BadSerialization, why));
        if depth > MAX_DEPTH {
            return refuse(format!("tojson supports at most {MAX_DEPTH} levels of nesting"));
        }
        match value.kind() {
            ValueKind::None => self.json.push_str("null"),
            ValueKind::Bool => self.json.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.json.push_str(&value.to_string()),
            ValueKind::Number => self.json.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                self.items(['[', ']'], &items, depth, |this, item| this.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let object = value.as_object();
                self.has_content |= object.is_some_and(values::is_dict);
                let pairs = object.and_then(DynObject::try_iter_pairs);
                let pairs: Vec<_> = pairs.into_iter().flatten().collect();
                self.items(['{', '}'], &pairs, depth, |this, (key, value)| {
                    this.key(key)?;
                    this.json.push_str(&this.key_separator.clone());
                    this.value(value, depth + 1)
                })?;
            }
            kind => return refuse(format!("tojson cannot write a value of type {kind}")),
        }
        Ok(())
    }

    fn items<T>(
        &mut self,
        [open, close]: [char; 2],
        items: &[T],
        depth: usize,
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.json.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.json.push_str(&self.item_separator.clone());
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.json.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.json.push('\n');
            self.json.extend(std::iter::repeat_n(' ', depth * indent));
        }
    }

    /// Python writes keys that are numbers, booleans or `None` as their JSON.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.as_str() {
            Some(key) => self.string(key),
            None => {
                self.json.push('"');
                self.value(key, MAX_DEPTH)?;
                self.json.push('"');
            }
        }
        Ok(())
    }

    fn string(&mut self, string: &str) {
        let plain = plain(self.marks, string);
        self.has_content |= plain.len() < string.len();
        let quoted = Json::from(&*plain).to_string();
        if !self.ensure_ascii {
            self.json.push_str(&quoted);
            return;
        }
        for char in quoted.chars() {
            if char.is_ascii() {
                self.json.push(char);
                continue;
            }
            for unit in char.encode_utf16(&mut [0; 2]) {
                self.json.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

/// Formats a float like Python's `repr`.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse().unwrap_or(0) {
        -4..16 => format!("{number:?}"),
        exponent @ 0.. => format!("{digits}e+{exponent:02}"),
        exponent => format!("{digits}e-{:02}", -exponent),
    }
}
