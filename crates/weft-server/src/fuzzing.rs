//! Gives the fuzz targets in `fuzz/` access to the parsers of requests, grammars and answers.
//!
//! Runs every check that a body passes before it reaches the engine, without a socket or a thread.

use std::collections::BTreeMap;

use weft_core::chunk::Reuse;

use crate::api_error::ApiError;
use crate::dialects::{
    CompletionRequest, CountRequest, LlamaCompletion, MessagesRequest, OllamaChat, OllamaGenerate,
    OpenAiChat, ResponsesRequest, TextsRequest,
};
use crate::grammars::Rule;
use crate::http::parse;
use crate::model_info::{Loaded, ModelInfo};
use crate::requests::ChatRequest;
use crate::responses::{CallStyle, calls_in_pieces};

/// Reads bodies for one model.
pub struct Reader(ModelInfo);

impl Reader {
    /// A reader for a loaded model.
    pub fn new(loaded: &Loaded) -> Self {
        Self(ModelInfo::new(loaded))
    }

    /// Reads the body of a chat. False if it is refused.
    pub fn chat(&self, body: &[u8]) -> bool {
        let read = || -> Result<(), ApiError> {
            let OpenAiChat(request) = parse(body)?;
            self.answer(&request)
        };
        read().is_ok()
    }

    /// Reads the body of Anthropic's Messages. False if it is refused.
    pub fn messages(&self, body: &[u8]) -> bool {
        let read = || -> Result<(), ApiError> {
            let CountRequest(counted) = parse(body)?;
            counted.prompt(&self.0, &BTreeMap::new(), Reuse::Exact)?;
            let request: MessagesRequest = parse(body)?;
            self.answer(&request.chat)
        };
        read().is_ok()
    }

    /// Reads the body of OpenAI's Responses. False if it is refused.
    pub fn responses(&self, body: &[u8]) -> bool {
        let read = || -> Result<(), ApiError> {
            let request: ResponsesRequest = parse(body)?;
            self.answer(&request.chat(&[])?)
        };
        read().is_ok()
    }

    /// Reads a body of Ollama's, as a chat and as a text. False if both are refused.
    pub fn ollama(&self, body: &[u8]) -> bool {
        let chat = || -> Result<(), ApiError> {
            let OllamaChat(request) = parse(body)?;
            self.answer(&request.chat)
        };
        let text = || -> Result<(), ApiError> {
            let OllamaGenerate(request) = parse(body)?;
            self.answer(&request.chat)
        };
        let (chat, text) = (chat(), text());
        chat.is_ok() || text.is_ok()
    }

    /// Does what is done for a chat of any dialect before the engine gets it.
    fn answer(&self, request: &ChatRequest) -> Result<(), ApiError> {
        for reuse in Reuse::ALL {
            request.compose(&self.0, &BTreeMap::new(), reuse)?;
        }
        request.sampling(&self.0)?;
        let style = self.0.call_style;
        let strict = request.strict_tools(style).map(Rule::Strict);
        self.follow(request.rule(style).or(strict).as_ref())
    }

    /// Reads the body of a completion. False if it is refused.
    pub fn completion(&self, body: &[u8]) -> bool {
        let read = || -> Result<(), ApiError> {
            let CompletionRequest(request) = parse(body)?;
            self.texts(&request)
        };
        read().is_ok()
    }

    /// Reads the body of a completion in llama.cpp's words. False if it is refused.
    pub fn llama(&self, body: &[u8]) -> bool {
        let read = || -> Result<(), ApiError> {
            let request: LlamaCompletion = parse(body)?;
            self.texts(&request.texts)
        };
        read().is_ok()
    }

    fn texts(&self, request: &TextsRequest) -> Result<(), ApiError> {
        request.compose(&self.0)?;
        request.sampling(&self.0)?;
        self.follow(request.rule().0.as_ref())
    }

    /// Compiles a grammar as llama.cpp writes it. False if it is refused.
    pub fn grammar(&self, text: &str) -> bool {
        self.follow(Some(&Rule::Grammar(text.to_owned()))).is_ok()
    }

    /// Compiles a regular expression. False if it is refused.
    pub fn regex(&self, text: &str) -> bool {
        self.follow(Some(&Rule::Regex(text.to_owned()))).is_ok()
    }

    /// Compiles a JSON schema. False if it is refused.
    pub fn schema(&self, json: &[u8]) -> bool {
        let Ok(schema) = serde_json::from_slice(json) else { return false };
        self.follow(Some(&Rule::Json(schema))).is_ok()
    }

    /// Compiles a rule and computes which first tokens it allows.
    fn follow(&self, rule: Option<&Rule>) -> Result<(), ApiError> {
        let Some(rule) = rule else { return Ok(()) };
        let mut constraint = self.0.constraint(rule, "rule")?;
        let mut mask = vec![0; self.0.vocab().div_ceil(32)];
        // If a rule cannot be followed, the answer fails; the parser has done its part.
        let _ = constraint.allow(&mut mask);
        Ok(())
    }
}

/// Reads an answer's calls of tools, as a whole and in pieces of `size` characters. Panics if the
/// two differ, or if the arguments of complete calls are no JSON. `style` is the number of the form
/// in which calls are written; `is_cut` says that the answer ended too early.
pub fn tool_calls(text: &str, style: u8, size: usize, is_cut: bool) {
    let style = [CallStyle::Hermes, CallStyle::Tags, CallStyle::Bare][usize::from(style % 3)];
    let starts = text.char_indices().step_by(size.max(1)).map(|(at, _)| at);
    let starts: Vec<usize> = starts.chain([text.len()]).collect();
    let pieces = starts.windows(2).map(|ends| &text[ends[0]..ends[1]]);
    let whole = calls_in_pieces(style, [text], is_cut);
    assert_eq!(calls_in_pieces(style, pieces, is_cut), whole, "pieces of {size}");
    let (_, calls, is_complete) = whole;
    for (_, arguments) in calls.iter().filter(|_| is_complete) {
        let json: Result<serde_json::Value, _> = serde_json::from_str(arguments);
        assert!(json.is_ok(), "arguments {arguments}");
    }
}
