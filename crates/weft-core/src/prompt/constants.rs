//! Bounds the constants of a template. The compiler computes expressions without variables, such
//! as `'-' * 80`, before there is a rendering whose budget could pay for them.
//!
//! It knows the parser's expressions, and how large the result of each operator can be.

use minijinja::Value;
use minijinja::machinery::ast::{BinOp, BinOpKind, CallArg, Expr, Stmt};
use minijinja::value::ValueKind;

use super::PromptError;

/// Bytes that the constants of a template may have together, with those in between.
const MAX_BYTES: usize = 1 << 20;
/// What an item of a list costs besides its text.
const ITEM_BYTES: usize = 64;
/// The longest number that an operator can make, written out; and the longest of most.
const NUMBER_BYTES: usize = 400;
const USUAL_NUMBER_BYTES: usize = 24;
/// Characters that stand for one character of a string in a list that is written out.
const ESCAPED: usize = 10;

/// Refuses a template whose constants would be too large. Call it before the compiler.
pub(super) fn check(template: &Stmt<'_>) -> Result<(), PromptError> {
    let mut left = MAX_BYTES;
    let mut statements = vec![template];
    while let Some(statement) = statements.pop() {
        let mut expressions = Vec::new();
        parts(statement, &mut statements, &mut expressions);
        for expression in expressions {
            constant(expression, &mut left)?;
        }
    }
    Ok(())
}

/// Adds the statements and the expressions of a statement.
fn parts<'s, 'a>(
    statement: &'s Stmt<'a>,
    statements: &mut Vec<&'s Stmt<'a>>,
    expressions: &mut Vec<&'s Expr<'a>>,
) {
    match statement {
        Stmt::Template(template) => statements.extend(&template.children),
        Stmt::EmitExpr(emit) => expressions.push(&emit.expr),
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        Stmt::ForLoop(each) => {
            expressions.extend([&each.target, &each.iter]);
            expressions.extend(&each.filter_expr);
            statements.extend(each.body.iter().chain(&each.else_body));
        }
        Stmt::IfCond(cond) => {
            expressions.push(&cond.expr);
            statements.extend(cond.true_body.iter().chain(&cond.false_body));
        }
        Stmt::WithBlock(with) => {
            expressions.extend(with.assignments.iter().flat_map(|(to, from)| [to, from]));
            statements.extend(&with.body);
        }
        Stmt::Set(set) => expressions.extend([&set.target, &set.expr]),
        Stmt::SetBlock(set) => {
            expressions.push(&set.target);
            expressions.extend(&set.filter);
            statements.extend(&set.body);
        }
        Stmt::AutoEscape(escape) => {
            expressions.push(&escape.enabled);
            statements.extend(&escape.body);
        }
        Stmt::FilterBlock(filter) => {
            expressions.push(&filter.filter);
            statements.extend(&filter.body);
        }
        Stmt::Block(block) => statements.extend(&block.body),
        Stmt::Import(import) => expressions.extend([&import.expr, &import.name]),
        Stmt::FromImport(import) => {
            expressions.push(&import.expr);
            expressions
                .extend(import.names.iter().flat_map(|(name, to)| [name].into_iter().chain(to)));
        }
        Stmt::Extends(extends) => expressions.push(&extends.name),
        Stmt::Include(include) => expressions.push(&include.name),
        Stmt::Macro(new) => {
            expressions.extend(new.args.iter().chain(&new.defaults));
            statements.extend(&new.body);
        }
        Stmt::CallBlock(block) => {
            let new = &block.macro_decl;
            expressions.push(&block.call.expr);
            expressions.extend(arguments(&block.call.args));
            expressions.extend(new.args.iter().chain(&new.defaults));
            statements.extend(&new.body);
        }
        Stmt::Do(call) => {
            expressions.push(&call.call.expr);
            expressions.extend(arguments(&call.call.args));
        }
    }
}

fn arguments<'s, 'a>(args: &'s [CallArg<'a>]) -> impl Iterator<Item = &'s Expr<'a>> {
    args.iter().map(|arg| match arg {
        CallArg::Pos(expr)
        | CallArg::Kwarg(_, expr)
        | CallArg::PosSplat(expr)
        | CallArg::KwargSplat(expr) => expr,
    })
}

/// A bound on the bytes of an expression that the compiler computes, written out; `None` if it
/// leaves it to the rendering. Operators take their bytes from `left`.
fn constant(expr: &Expr<'_>, left: &mut usize) -> Result<Option<usize>, PromptError> {
    let bytes = match expr {
        Expr::Const(constant) => return Ok(Some(literal(&constant.value))),
        Expr::List(list) => return items(list.items.iter(), left),
        Expr::Tuple(tuple) => return items(tuple.items.iter(), left),
        Expr::Map(map) => return items(map.keys.iter().chain(&map.values), left),
        Expr::UnaryOp(op) => constant(&op.expr, left)?.map(|bytes| bytes.max(USUAL_NUMBER_BYTES)),
        Expr::BinOp(op) => match (constant(&op.left, left)?, constant(&op.right, left)?) {
            (Some(a), Some(b)) => return computed(op, a.saturating_add(b), left).map(Some),
            _ => None,
        },
        Expr::Compare(compare) => {
            let mut sum = constant(&compare.expr, left)?;
            for op in &compare.ops {
                let bytes = constant(&op.expr, left)?;
                sum = sum.zip(bytes).map(|(a, b)| a.saturating_add(b));
            }
            sum
        }
        other => {
            for operand in operands(other) {
                constant(operand, left)?;
            }
            None
        }
    };
    spend(bytes.unwrap_or_default(), left)?;
    Ok(bytes)
}

/// The same for an operator of two constants that have `sum` bytes.
fn computed(op: &BinOp<'_>, sum: usize, left: &mut usize) -> Result<usize, PromptError> {
    let bytes = match op.op {
        BinOpKind::Mul => sum.max(USUAL_NUMBER_BYTES).saturating_mul(repeats(op)),
        BinOpKind::Add => sum.max(USUAL_NUMBER_BYTES),
        BinOpKind::Sub | BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem | BinOpKind::Pow => {
            NUMBER_BYTES
        }
        _ => sum,
    };
    spend(bytes.max(sum), left)?;
    Ok(bytes)
}

fn spend(bytes: usize, left: &mut usize) -> Result<(), PromptError> {
    *left = left.checked_sub(bytes).ok_or(PromptError::Limit {
        what: "the number of bytes of the chat template's constants",
        limit: MAX_BYTES as u64,
    })?;
    Ok(())
}

fn literal(value: &Value) -> usize {
    value.as_str().map_or_else(|| value.to_string().len(), str::len)
}

/// The compiler computes lists, tuples and dicts of literals alone.
fn items<'s, 'a: 's>(
    items: impl Iterator<Item = &'s Expr<'a>>,
    left: &mut usize,
) -> Result<Option<usize>, PromptError> {
    let mut sum = Some(ITEM_BYTES);
    for item in items {
        let bytes = constant(item, left)?;
        let bytes = bytes.filter(|_| matches!(item, Expr::Const(_)));
        sum = sum.zip(bytes).map(|(a, b)| a.saturating_add(ITEM_BYTES + b * ESCAPED));
    }
    Ok(sum)
}

/// How often an operator of constants repeats a string or a list. The constants are within the
/// limit already.
fn repeats(op: &BinOp<'_>) -> usize {
    let BinOpKind::Mul = op.op else { return 1 };
    let (Some(left), Some(right)) = (op.left.as_const(), op.right.as_const()) else { return 1 };
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    match (is_number(&left), is_number(&right)) {
        (true, false) => left.as_usize().unwrap_or(1).max(1),
        (false, true) => right.as_usize().unwrap_or(1).max(1),
        _ => 1,
    }
}

/// The parts of an expression that the compiler never computes as a whole.
fn operands<'s, 'a>(expr: &'s Expr<'a>) -> Vec<&'s Expr<'a>> {
    match expr {
        Expr::Slice(slice) => {
            let bounds = [&slice.start, &slice.stop, &slice.step];
            [&slice.expr].into_iter().chain(bounds.into_iter().flatten()).collect()
        }
        Expr::IfExpr(cond) => {
            let both = [&cond.test_expr, &cond.true_expr];
            both.into_iter().chain(&cond.false_expr).collect()
        }
        Expr::Filter(filter) => filter.expr.iter().chain(arguments(&filter.args)).collect(),
        Expr::Test(test) => [&test.expr].into_iter().chain(arguments(&test.args)).collect(),
        Expr::GetAttr(get) => vec![&get.expr],
        Expr::GetItem(get) => vec![&get.expr, &get.subscript_expr],
        Expr::Call(call) => [&call.expr].into_iter().chain(arguments(&call.args)).collect(),
        _ => Vec::new(),
    }
}
