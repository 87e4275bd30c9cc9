//! A limit of regular expressions that strangers write.

/// How often an expression may repeat a part by numbers, such as the 3 of `\p{N}{1,3}`. This bounds
/// the expressions that look around, for which the regex crate ignores its limit of bytes.
const MAX_REPEATS: usize = 64;

/// Why an expression repeats a part too often, if it does.
pub(crate) fn check_repeats(pattern: &str) -> Result<(), String> {
    match repeats(pattern) {
        n if n > MAX_REPEATS => {
            Err(format!("it repeats a part {n} times, and the limit is {MAX_REPEATS}"))
        }
        _ => Ok(()),
    }
}

/// How often an expression repeats a part at most: the product of its numbers in braces, since
/// repetitions may lie in each other.
fn repeats(pattern: &str) -> usize {
    let (mut product, mut chars) = (1_usize, pattern.chars());
    while let Some(char) = chars.next() {
        let is_named = char == '\\' && chars.next().is_some_and(|c| "xuUpP".contains(c));
        let is_open = if is_named { chars.as_str().starts_with('{') } else { char == '{' };
        if !is_open {
            continue;
        }
        let inside = chars.by_ref().take_while(|c| *c != '}').collect::<String>();
        // The braces of a code point or a class hold no repetitions.
        let numbers = inside.split(|c: char| !c.is_ascii_digit()).filter(|_| !is_named);
        let numbers = numbers.filter(|digits| !digits.is_empty());
        let largest = numbers.map(|digits| digits.parse().unwrap_or(usize::MAX)).max();
        product = product.saturating_mul(largest.unwrap_or(1).max(1));
    }
    product
}
