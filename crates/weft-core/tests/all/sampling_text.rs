//! Compares `TextStream` with a definition on the whole text: for any cuts of the bytes, the same
//! text is released, ends at the same stop string, and is never held longer than necessary.

use proptest::prelude::*;
use weft_core::sampling::TextStream;

/// Where the text ends and by which stop: at the first character that completes a stop; if it
/// completes several, by the longest, then by the first in the list.
fn naive_stop(text: &str, stops: &[String]) -> Option<(usize, usize)> {
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let complete = |stop: &&String| !stop.is_empty() && text[..end].ends_with(stop.as_str());
        if let Some(longest) = stops.iter().filter(complete).map(String::len).max() {
            let which = stops.iter().position(|s| s.len() == longest && complete(&s));
            return which.map(|which| (end - longest, which));
        }
    }
    None
}

/// The bytes without an incomplete character at their end.
fn finished(bytes: &[u8]) -> &[u8] {
    for n in 1..=bytes.len().min(3) {
        let (before, last) = bytes.split_at(bytes.len() - n);
        if std::str::from_utf8(last).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
        {
            return before;
        }
    }
    bytes
}

/// The part of `text` that may be shown if more may follow: all but its longest suffix that is the
/// start of a stop.
fn naive_shown<'a>(text: &'a str, stops: &[String]) -> &'a str {
    let held = |start: &usize| stops.iter().any(|s| s.starts_with(&text[*start..]));
    let start = (0..text.len()).filter(|&i| text.is_char_boundary(i)).find(held);
    &text[..start.unwrap_or(text.len())]
}

fn check(bytes: &[u8], cuts: &[usize], stops: &[String]) -> Result<(), TestCaseError> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();

    let mut stream = TextStream::new(stops);
    let mut shown = String::new();
    for window in cuts.windows(2) {
        let piece = stream.push(&bytes[window[0]..window[1]]);
        shown += &piece.text;
        let so_far = String::from_utf8_lossy(finished(&bytes[..window[1]]));
        match naive_stop(&so_far, stops) {
            Some((end, which)) => {
                prop_assert_eq!(piece.stopped, Some(which));
                prop_assert_eq!(&shown, &so_far[..end]);
            }
            None => {
                prop_assert_eq!(piece.stopped, None);
                prop_assert_eq!(&shown, naive_shown(&so_far, stops));
            }
        }
    }
    shown += &stream.finish();
    let whole = String::from_utf8_lossy(bytes);
    let end = naive_stop(&whole, stops).map_or(whole.len(), |(end, _)| end);
    prop_assert_eq!(&shown, &whole[..end]);
    Ok(())
}

/// Few characters, so that stops overlap, contain and start one another; é, è and 😀, 😁 share bytes.
fn stops() -> impl Strategy<Value = Vec<String>> {
    let stop = prop_oneof!["[abéè😀😁]{1,2}", "[abéè😀😁]{2,5}", "[ab]{3,8}", "[ab]\u{FFFD}?"];
    prop::collection::vec(stop, 0..5)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_cut_of_a_text_gives_the_same(
        text in prop_oneof!["[abéè😀😁]{0,40}", "[ab]{0,60}"],
        cuts in cuts(),
        stops in stops(),
    ) {
        check(text.as_bytes(), &cuts, &stops)?;
    }

    #[test]
    fn any_cut_of_any_bytes_gives_the_same(
        bytes in prop::collection::vec(
            prop_oneof![
                any::<u8>(),
                prop::sample::select(b"ab\xC3\xA9\xA8\xE4\xBD\xA0\xF0\x9F\x98\x80\xED\xF4".as_slice())
            ],
            0..40,
        ),
        cuts in cuts(),
        stops in stops(),
    ) {
        check(&bytes, &cuts, &stops)?;
    }
}

#[test]
fn one_byte_at_a_time_is_enough_for_any_stop() {
    let stops: Vec<String> = ["</tool>", "\n\nUser:", "終わり"].map(String::from).into();
    for (which, stop) in stops.iter().enumerate() {
        let text = format!("so </too it\n\nUse 終わ is{stop} and more");
        let mut stream = TextStream::new(&stops);
        let mut shown = String::new();
        let mut stopped = None;
        for byte in text.bytes() {
            let piece = stream.push(&[byte]);
            shown += &piece.text;
            stopped = piece.stopped;
        }
        shown += &stream.finish();
        assert_eq!((shown.as_str(), stopped), ("so </too it\n\nUse 終わ is", Some(which)));
    }
}

/// A stop string of maximum length, with the worst text for a naive search.
#[test]
fn long_stops_are_not_searched_again_and_again() {
    let stops: Vec<_> = (0..16).map(|i| "a".repeat(1000 + i) + "b").collect();
    let mut stream = TextStream::new(&stops);
    let mut n_shown = 0;
    for _ in 0..20_000 {
        n_shown += stream.push(b"aaaaaaaa").text.len();
    }
    assert_eq!(n_shown, 160_000 - 1015);
    assert_eq!(stream.push(b"b").stopped, Some(15));
}
