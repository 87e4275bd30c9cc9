//! How text that is not JSON becomes it.

use proptest::prelude::*;

use super::*;

fn mend(text: &str) -> String {
    super::mend(text, MAX_DEPTH)
}

#[test]
fn valid_json_stays_as_it_is() {
    for json in [
        "{}",
        "{\"a\":[{},\"\\\"}\\\\\",-1.5e3,true,null],\"b\":{\"c\":\"\\u00e9\\ud83d\\ude00é\"}}",
        "[1,[],\"x\"]",
    ] {
        assert_eq!(mend(json), json);
        assert_eq!(mend(&json.replace(',', " ,\n ")), json);
    }
}

#[test]
fn broken_json_is_mended_with_the_least_change() {
    for (broken, wanted) in [
        ("{\"a\": 1", "{\"a\":1}"),
        ("{\"a\": [1, {\"b\": \"x", "{\"a\":[1,{\"b\":\"x\"}]}"),
        ("{\"a\": 1,}", "{\"a\":1}"),
        ("{\"a\": [1, 2,], }", "{\"a\":[1,2]}"),
        ("{'a': 'it\\'s \"so\"'}", "{\"a\":\"it's \\\"so\\\"\"}"),
        ("{a: True, b: None, c: word}", "{\"a\":true,\"b\":null,\"c\":\"word\"}"),
        ("{\"a\" 1 \"b\": 2}", "{\"a\":1,\"b\":2}"),
        ("{\"a\": \"two\nlines\"}", "{\"a\":\"two\\nlines\"}"),
        ("{\"a\": \"C:\\data\"}", "{\"a\":\"C:\\\\data\"}"),
        ("{\"a\": , \"b\"}", "{\"a\":null,\"b\":null}"),
        ("{\"a\": [1}", "{\"a\":[1]}"),
        ("{{\"a\": 1}}", "{\"a\":1}"),
        ("{\"a\": \"\\ud83d\"}", "{\"a\":\"\\ufffd\"}"),
        ("{\"a\": \"\\u12\"}", "{\"a\":\"\\\\u12\"}"),
    ] {
        assert_eq!(mend(broken), wanted, "{broken}");
    }
}

#[test]
fn what_is_nested_too_deep_becomes_null() {
    let mend = |text: &str| super::mend(text, 3);
    for (deep, wanted) in [
        ("{\"a\":[[]],\"b\":[{}]}", "{\"a\":[[]],\"b\":[{}]}"),
        ("{\"a\":[[[1,\"]\"]],2],\"b\":3}", "{\"a\":[[null],2],\"b\":3}"),
        ("{\"a\":[[1,[2],3,{\"b\":{}},4]]}", "{\"a\":[[1,null,3,null,4]]}"),
        (
            "{\"a\":{\"b\":{\"c\":{\"d\":\"\\u00e9\\ud83d\"},\"e\":5}}}",
            "{\"a\":{\"b\":{\"c\":null,\"e\":5}}}",
        ),
        ("{a{b{c{d", "{\"a\":{\"b\":{\"c\":null}}}"),
        ("{a[[[[[[x}", "{\"a\":[[null]]}"),
    ] {
        assert_eq!(mend(deep), wanted, "{deep}");
    }
}

#[test]
fn arguments_fit_into_a_body_that_sends_them_back() {
    let levels = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(serde_json::from_str::<Value>(&levels(MAX_DEPTH + 6)).is_ok());
    assert!(serde_json::from_str::<Value>(&levels(MAX_READ_DEPTH)).is_ok());
    assert!(serde_json::from_str::<Value>(&levels(MAX_READ_DEPTH + 1)).is_err());
}

proptest! {
    #[test]
    fn whatever_is_deep_becomes_valid_and_shallow(
        text in "[{}\\[\\],:\"'a]{0,60}", max_depth in 1_usize..6
    ) {
        let json = super::mend(&format!("{{{text}"), max_depth);
        let value: Result<Value, _> = serde_json::from_str(&json);
        prop_assert!(value.is_ok_and(|v| depth(&v) <= max_depth), "{text:?} gave {json}");
    }

    #[test]
    fn whatever_a_model_writes_becomes_valid(
        text in "[{}\\[\\],:\"'\\\\ud8cDaeTrnlu0-9 .\\n\t<é-]{0,60}"
    ) {
        let json = mend(&format!("{{{text}"));
        let value: Result<Value, _> = serde_json::from_str(&json);
        prop_assert!(value.is_ok_and(|value| value.is_object()), "{text:?} gave {json}");
    }

    #[test]
    fn valid_values_are_not_changed(keys in prop::collection::vec(".{0,6}", 0..5),
                                    number in any::<f64>(), text in ".{0,20}") {
        let mut value = serde_json::json!({});
        for key in keys {
            value[&key] = serde_json::json!([number, text, {key.clone(): null}]);
        }
        let json = value.to_string();
        prop_assert_eq!(mend(&json), json);
    }
}
