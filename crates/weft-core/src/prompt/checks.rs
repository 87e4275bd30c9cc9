//! The budget of a rendering, and the checks that keep values within it.
//!
//! A value may have a limited depth and a limited size when all of it is written out, so a step
//! that walks through it takes limited time, memory and stack. Everything that is made, written or
//! compared is paid for from one budget.

use std::cell::Cell;

use minijinja::value::{DynObject, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, tests};

use super::environment::Cause;

/// The names of the checks. A template can reach them only by `map`, which does no harm.
pub(super) const MADE: &str = "#made";
pub(super) const SEEN: &str = "#seen";
pub(super) const KEPT: &str = "#kept";
pub(super) const TIMES: &str = "#times";
pub(super) const READ: &str = "#read";

/// Levels of lists and dicts in each other. A request has at most 128, and tools add a few.
const MAX_DEPTH: usize = 256;
/// Bytes that are copied in the time in which one value is looked at.
const NODE_BYTES: usize = 8;
/// What an item of a list or dict costs.
pub(super) const ITEM_BYTES: usize = 8;

thread_local! {
    /// Bytes that the rendering on this thread may still process.
    static LEFT: Cell<usize> = const { Cell::new(0) };
    /// The same at its beginning.
    static LIMIT: Cell<usize> = const { Cell::new(0) };
}

/// Begins a rendering on this thread.
pub(super) fn begin(limit: usize) {
    LEFT.set(limit);
    LIMIT.set(limit);
}

/// Counts work. The next check fails if it was too much.
pub(super) fn charge(bytes: usize) {
    LEFT.set(LEFT.get().saturating_sub(bytes));
}

/// Counts work that the interpreter's fuel does not cover.
pub(super) fn spend(bytes: usize) -> Result<(), Error> {
    charge(bytes);
    if LEFT.get() > 0 { Ok(()) } else { Err(spent()) }
}

fn spent() -> Error {
    let cause = Cause::Worked(LIMIT.get() as u64);
    Error::from(ErrorKind::OutOfFuel).with_source(cause)
}

/// The size of a value, written out.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

/// Walks through a value. Fails if it is too deep, or too large for what is left of the budget.
fn size_of(value: &Value) -> Result<Size, Error> {
    let mut size = Size::default();
    add_size(value, 0, &mut size)?;
    Ok(size)
}

fn add_size(value: &Value, depth: usize, size: &mut Size) -> Result<(), Error> {
    size.nodes += 1;
    size.bytes += value.as_str().map_or(ITEM_BYTES, str::len);
    if size.nodes.max(size.bytes) >= LIMIT.get() || size.nodes * NODE_BYTES >= LEFT.get() {
        return Err(spent());
    }
    let is_map = match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => false,
        ValueKind::Map => true,
        _ => return Ok(()),
    };
    if depth == MAX_DEPTH {
        let why = format!("a value has more than {MAX_DEPTH} levels of nesting");
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    if is_map {
        let pairs = value.as_object().and_then(DynObject::try_iter_pairs);
        for (key, value) in pairs.into_iter().flatten() {
            add_size(&key, depth + 1, size)?;
            add_size(&value, depth + 1, size)?;
        }
        return Ok(());
    }
    for item in value.try_iter()?.checked() {
        add_size(&item?, depth + 1, size)?;
    }
    Ok(())
}

/// Checks a value that was just made, and pays for it. What would be computed while it is read is
/// computed now: reading it could go deep, or be repeated.
fn made(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        spend(text.len())?;
        return Ok(value);
    }
    let value = match value.kind() {
        ValueKind::Seq | ValueKind::Map => value,
        ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                spend(ITEM_BYTES)?;
                items.push(item?);
            }
            Value::from(items)
        }
        _ => return Ok(value),
    };
    let size = size_of(&value)?;
    spend(NODE_BYTES * size.nodes + ITEM_BYTES * value.len().unwrap_or_default())?;
    Ok(value)
}

/// Pays for walking through a value and all its text.
pub(super) fn seen(value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => spend(value.as_str().map_or(0, str::len)),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            let size = size_of(value)?;
            spend(NODE_BYTES * size.nodes + size.bytes)
        }
        _ => Ok(()),
    }
}

/// Pays for looking at each item or character of a value.
fn pay_items(value: &Value) -> Result<(), Error> {
    let n_items = value.as_str().map(str::len).or_else(|| value.len()).unwrap_or_default();
    spend(n_items.saturating_mul(2 * NODE_BYTES))
}

/// Pays for looking for a character of a text from its start.
fn read(value: Value) -> Result<Value, Error> {
    spend(value.as_str().map_or(0, str::len))?;
    Ok(value)
}

/// Whether comparing with a constant takes so little that no one pays for it.
pub(super) fn is_short(constant: &Value) -> bool {
    match (constant.as_str(), constant.kind()) {
        (Some(text), _) => text.len() <= 256,
        (None, ValueKind::Seq) => {
            constant.len().is_some_and(|n| n <= 64)
                && constant.try_iter().is_ok_and(|mut items| items.all(|item| is_short(&item)))
        }
        (None, kind) => !matches!(kind, ValueKind::Iterable | ValueKind::Map),
    }
}

/// Refuses to keep a namespace in a namespace: it would never be freed.
fn kept(value: Value) -> Result<Value, Error> {
    if has_namespace(&value) {
        let why = "a namespace cannot be kept in a namespace";
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    Ok(value)
}

/// Whether a value of checked depth holds a namespace.
fn has_namespace(value: &Value) -> bool {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return false;
    }
    charge(1);
    let Some(object) = value.as_object() else { return false };
    if object.type_name().ends_with("::Namespace") {
        return true;
    }
    match object.try_iter_pairs().filter(|_| value.kind() == ValueKind::Map) {
        Some(mut pairs) => pairs.any(|(_, value)| has_namespace(&value)),
        None => value.try_iter().is_ok_and(|mut items| items.any(|item| has_namespace(&item))),
    }
}

/// `a * b`: numbers are multiplied, strings and lists are repeated.
fn times(a: &Value, b: &Value) -> Result<Value, Error> {
    let impossible = || {
        let why =
            format!("tried to use * operator on unsupported types {} and {}", a.kind(), b.kind());
        Error::new(ErrorKind::InvalidOperation, why)
    };
    let repeatable = |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable)
    };
    let (repeated, n) = if repeatable(a) { (a, b) } else { (b, a) };
    if repeatable(repeated) {
        let n = n.as_usize().ok_or_else(|| {
            let why = "strings and sequences can only be multiplied with integers";
            Error::new(ErrorKind::InvalidOperation, why)
        })?;
        if let Some(text) = repeated.as_str() {
            spend(text.len().saturating_mul(n))?;
            return Ok(Value::from(text.repeat(n)));
        }
        let items = repeated.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
        spend(items.len().saturating_mul(n).saturating_mul(ITEM_BYTES))?;
        let items: Vec<Value> = (0..n).flat_map(|_| items.iter().cloned()).collect();
        let is_tuple = repeated.is_tuple();
        return Ok(if is_tuple { Value::from(Tuple::from(items)) } else { Value::from(items) });
    }
    let is_whole = |value: &Value| value.is_integer() || value.kind() == ValueKind::Bool;
    if is_whole(a)
        && is_whole(b)
        && let (Ok(a), Ok(b)) = (i128::try_from(a.clone()), i128::try_from(b.clone()))
    {
        let product = a.checked_mul(b).ok_or_else(impossible)?;
        return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    match (f64::try_from(a.clone()), f64::try_from(b.clone())) {
        (Ok(a), Ok(b)) => Ok(Value::from(a * b)),
        _ => Err(impossible()),
    }
}

/// Pays for `items` joined by `separator`, before they are joined.
pub(super) fn pay_join(items: &Value, separator: usize) -> Result<(), Error> {
    seen(items)?;
    spend(items.len().unwrap_or_default().saturating_mul(separator))
}

/// Pays for a format: each of its fields may write the longest argument.
pub(super) fn pay_format(n_fields: usize, width: usize, args: &[Value]) -> Result<(), Error> {
    let mut longest = width;
    for arg in args {
        let size = size_of(arg)?;
        longest = longest.max(size.bytes);
    }
    spend(n_fields.saturating_mul(longest))
}

/// Adds the checks, and lets filters and tests pay before they do what grows.
pub(super) fn add(env: &mut Environment<'static>) {
    env.add_filter(MADE, made);
    env.add_filter(SEEN, |value: Value| seen(&value).map(|()| value));
    env.add_filter(KEPT, kept);
    env.add_filter(READ, read);
    env.add_function(TIMES, times);
    pay_first(env, "join", Value::from_function(filters::join), |args| {
        let separator = args.get(1).map_or(0, |separator| separator.as_str().map_or(64, str::len));
        pay_join(args.first().unwrap_or(&Value::UNDEFINED), separator)
    });
    pay_first(env, "list", Value::from_function(filters::list), |args| {
        let text = args.first().and_then(Value::as_str).unwrap_or_default();
        spend(text.len().saturating_mul(ITEM_BYTES * 3))
    });
    // These write, read or compare all of a value.
    for (name, filter) in [
        ("int", Value::from_function(filters::int)),
        ("float", Value::from_function(filters::float)),
        ("string", Value::from_function(filters::string)),
        ("pprint", Value::from_function(filters::pprint)),
        ("sort", Value::from_function(filters::sort)),
        ("unique", Value::from_function(filters::unique)),
        ("groupby", Value::from_function(filters::groupby)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("min", Value::from_function(filters::min)),
        ("max", Value::from_function(filters::max)),
        ("sum", Value::from_function(filters::sum)),
        ("escape", Value::from_function(filters::escape)),
        ("e", Value::from_function(filters::escape)),
    ] {
        pay_first(env, name, filter, |args| args.iter().try_for_each(seen));
    }
    // These do something with each item.
    for (name, filter) in [
        ("map", Value::from_function(filters::map)),
        ("select", Value::from_function(filters::select)),
        ("reject", Value::from_function(filters::reject)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("reverse", Value::from_function(filters::reverse)),
        ("items", Value::from_function(filters::items)),
        ("chain", Value::from_function(filters::chain)),
        ("zip", Value::from_function(filters::zip)),
    ] {
        pay_first(env, name, filter, |args| args.iter().try_for_each(pay_items));
    }
    pay_first(env, "attr", Value::from_function(filters::attr), |args| {
        spend(args.first().and_then(Value::as_str).map_or(0, str::len))
    });
    add_tests(env);
}

/// Adds the tests that read or compare all of a value.
fn add_tests(env: &mut Environment<'static>) {
    for (name, test) in [
        ("in", Value::from_function(tests::is_in)),
        ("lower", Value::from_function(tests::is_lower)),
        ("upper", Value::from_function(tests::is_upper)),
        ("startingwith", Value::from_function(tests::is_startingwith)),
        ("endingwith", Value::from_function(tests::is_endingwith)),
        ("sameas", Value::from_function(tests::is_sameas)),
    ] {
        env.add_test(name, move |state: &mut State, args: Rest<Value>| {
            args.iter().try_for_each(seen)?;
            test.call(state, &args).map(|value| value.is_true())
        });
    }
    type Test = (&'static [&'static str], fn(&Value, &Value) -> bool);
    let comparisons: [Test; 6] = [
        (&["eq", "equalto", "=="], |a, b| a == b),
        (&["ne", "!="], |a, b| a != b),
        (&["lt", "lessthan", "<"], |a, b| a < b),
        (&["le", "<="], |a, b| a <= b),
        (&["gt", "greaterthan", ">"], |a, b| a > b),
        (&["ge", ">="], |a, b| a >= b),
    ];
    for (names, test) in comparisons {
        for name in names {
            env.add_test(*name, move |a: &Value, b: &Value| seen(b).map(|()| test(a, b)));
        }
    }
}

/// Adds a filter that pays before it works.
fn pay_first(
    env: &mut Environment<'static>,
    name: &'static str,
    filter: Value,
    pay: impl Fn(&[Value]) -> Result<(), Error> + Send + Sync + 'static,
) {
    env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args: Vec<Value> = args.0.into_iter().map(Value::from).collect();
        pay(&args)?;
        filter.call(state, &args)
    });
}
