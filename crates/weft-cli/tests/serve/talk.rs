//! A conversation with tools in any dialect, as its clients hold it. Every answer is asked for
//! whole and streamed, must be the same, and goes back into the conversation with its results.

use serde_json::{Value, json};

use crate::harness::{Server, joined, merged};
use crate::{messages, ollama, responses};

/// The dialects with tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Chat,
    Responses,
    Messages,
    Ollama,
}

impl Dialect {
    pub const ALL: [Self; 4] = [Self::Chat, Self::Responses, Self::Messages, Self::Ollama];
}

/// A tool: its name, what it says, and its one parameter, a string.
#[derive(Clone, Copy, Debug)]
pub struct Tool(pub &'static str, pub &'static str, pub &'static str);

impl Tool {
    fn json(self, dialect: Dialect) -> Value {
        let Self(name, about, parameter) = self;
        let schema = json!({"type": "object", "properties": {parameter: {"type": "string"}},
            "required": [parameter]});
        match dialect {
            Dialect::Chat | Dialect::Ollama => json!({"type": "function", "function": {
                "name": name, "description": about, "parameters": schema}}),
            Dialect::Responses => json!({"type": "function", "name": name, "description": about,
                "parameters": schema}),
            Dialect::Messages => {
                json!({"name": name, "description": about, "input_schema": schema})
            }
        }
    }
}

/// What an answer says in any dialect; each call is its name and arguments.
#[derive(Debug, PartialEq)]
pub struct Said {
    pub thought: String,
    pub text: String,
    pub calls: Vec<(String, Value)>,
    /// Whether it ended to wait for results.
    pub waits: bool,
}

/// A conversation.
pub struct Talk<'s> {
    server: &'s Server,
    dialect: Dialect,
    tools: Vec<Tool>,
    thinks: bool,
    turns: Vec<Value>,
    /// Id and name of each call of the last answer.
    calls: Vec<(Value, String)>,
}

impl<'s> Talk<'s> {
    pub fn new(server: &'s Server, dialect: Dialect, tools: &[Tool], thinks: bool) -> Self {
        let (tools, turns, calls) = (tools.to_vec(), Vec::new(), Vec::new());
        Self { server, dialect, tools, thinks, turns, calls }
    }

    pub fn ask(&mut self, question: &str) -> Said {
        self.turns.push(json!({"role": "user", "content": question}));
        self.answer()
    }

    /// Sends the results of the last answer's calls.
    pub fn give(&mut self, results: &[&str]) -> Said {
        assert_eq!(results.len(), self.calls.len());
        let results = std::mem::take(&mut self.calls).into_iter().zip(results);
        match self.dialect {
            Dialect::Chat => self.turns.extend(results.map(|((id, _), result)| {
                json!({"role": "tool", "tool_call_id": id, "content": result})
            })),
            Dialect::Responses => self.turns.extend(results.map(|((id, _), result)| {
                json!({"type": "function_call_output", "call_id": id, "output": result})
            })),
            Dialect::Messages => {
                let blocks: Vec<Value> = results
                    .map(|((id, _), result)| {
                        json!({"type": "tool_result", "tool_use_id": id, "content": result})
                    })
                    .collect();
                self.turns.push(json!({"role": "user", "content": blocks}));
            }
            Dialect::Ollama => self.turns.extend(results.map(|((_, name), result)| {
                json!({"role": "tool", "tool_name": name, "content": result})
            })),
        }
        self.answer()
    }

    fn answer(&mut self) -> Said {
        let tools: Vec<Value> = self.tools.iter().map(|tool| tool.json(self.dialect)).collect();
        let mut body = json!({"model": "weft-agent"});
        if !tools.is_empty() {
            body["tools"] = tools.into();
        }
        match self.dialect {
            Dialect::Chat => self.answer_in_chat(body),
            Dialect::Responses => self.answer_in_responses(body),
            Dialect::Messages => self.answer_in_messages(body),
            Dialect::Ollama => self.answer_in_ollama(body),
        }
    }

    fn answer_in_chat(&mut self, body: Value) -> Said {
        let template = json!({"enable_thinking": self.thinks});
        let more = json!({"messages": self.turns, "chat_template_kwargs": template});
        let body = merged(body, more);
        let answer = self.server.ask(&body)["choices"][0].clone();
        let message = &answer["message"];
        let events = self.server.events("/v1/chat/completions", &body);
        let (thought, calls) = streamed(&events);
        let text = message["content"].as_str().unwrap_or_default();
        assert_eq!(joined(&events), text);
        assert_eq!(thought, message["reasoning_content"].as_str().unwrap_or_default());
        let whole: Vec<&Value> = message["tool_calls"].as_array().into_iter().flatten().collect();
        let functions: Vec<Value> = whole.iter().map(|call| call["function"].clone()).collect();
        assert_eq!(calls, functions);
        let read = |function: &Value| {
            let arguments = function["arguments"].as_str().unwrap();
            (
                function["name"].as_str().unwrap().to_owned(),
                serde_json::from_str(arguments).unwrap(),
            )
        };
        let said = Said {
            thought,
            text: text.to_owned(),
            calls: functions.iter().map(read).collect(),
            waits: answer["finish_reason"] == "tool_calls",
        };
        let ids = whole.iter().map(|call| call["id"].clone());
        self.calls = ids.zip(said.calls.iter().map(|(name, _)| name.clone())).collect();
        // Clients of this dialect leave thoughts out.
        let mut turn = json!({"role": "assistant", "content": message["content"]});
        if !whole.is_empty() {
            turn["tool_calls"] = message["tool_calls"].clone();
        }
        self.turns.push(turn);
        said
    }

    fn answer_in_responses(&mut self, body: Value) -> Said {
        let effort = json!({"effort": if self.thinks { "medium" } else { "none" }});
        let body = merged(body, json!({"input": self.turns, "reasoning": effort}));
        let answer = responses::both(self.server, &body);
        let items = answer["output"].as_array().unwrap();
        let of_kind = |kind: &'static str| items.iter().filter(move |item| item["type"] == kind);
        let thoughts = of_kind("reasoning").map(|i| i["content"][0]["text"].as_str().unwrap());
        let calls = of_kind("function_call").map(|call| {
            let arguments = call["arguments"].as_str().unwrap();
            (call["name"].as_str().unwrap().to_owned(), serde_json::from_str(arguments).unwrap())
        });
        let said = Said {
            thought: thoughts.collect(),
            text: responses::text(&answer),
            calls: calls.collect(),
            waits: of_kind("function_call").next().is_some() && answer["status"] == "completed",
        };
        let ids = of_kind("function_call").map(|call| call["call_id"].clone());
        self.calls = ids.zip(said.calls.iter().map(|(name, _)| name.clone())).collect();
        self.turns.extend(items.iter().cloned());
        said
    }

    fn answer_in_messages(&mut self, body: Value) -> Said {
        let mut body = merged(body, json!({"messages": self.turns, "max_tokens": 200}));
        if self.thinks {
            body["thinking"] = json!({"type": "enabled", "budget_tokens": 100});
        }
        let answer = messages::both(self.server, &body);
        let blocks = answer["content"].as_array().unwrap();
        let texts = |kind: &str, field: &str| -> String {
            let blocks = blocks.iter().filter(|block| block["type"] == kind);
            blocks.map(|block| block[field].as_str().unwrap()).collect()
        };
        let used = || blocks.iter().filter(|block| block["type"] == "tool_use");
        let call =
            |block: &Value| (block["name"].as_str().unwrap().to_owned(), block["input"].clone());
        let said = Said {
            thought: texts("thinking", "thinking"),
            text: texts("text", "text"),
            calls: used().map(call).collect(),
            waits: answer["stop_reason"] == "tool_use",
        };
        let ids = used().map(|block| block["id"].clone());
        self.calls = ids.zip(said.calls.iter().map(|(name, _)| name.clone())).collect();
        self.turns.push(json!({"role": "assistant", "content": blocks}));
        said
    }

    fn answer_in_ollama(&mut self, body: Value) -> Said {
        let body = merged(body, json!({"messages": self.turns, "think": self.thinks}));
        let answer = ollama::both(self.server, "/api/chat", &body);
        let functions = answer["calls"].as_array().unwrap();
        let call = |function: &Value| {
            (function["name"].as_str().unwrap().to_owned(), function["arguments"].clone())
        };
        let said = Said {
            thought: answer["thought"].as_str().unwrap().to_owned(),
            text: answer["text"].as_str().unwrap().to_owned(),
            calls: functions.iter().map(call).collect(),
            waits: !functions.is_empty() && answer["reason"] == "stop",
        };
        self.calls = said.calls.iter().map(|(name, _)| (Value::Null, name.clone())).collect();
        let calls: Vec<Value> = functions.iter().map(|f| json!({"function": f})).collect();
        let mut turn = json!({"role": "assistant", "content": said.text});
        if !calls.is_empty() {
            turn["tool_calls"] = calls.into();
        }
        if !said.thought.is_empty() {
            turn["thinking"] = json!(said.thought);
        }
        self.turns.push(turn);
        said
    }
}

/// The thought of a chat's stream, and the functions that it calls.
fn streamed(events: &[Value]) -> (String, Vec<Value>) {
    let (mut thought, mut calls) = (String::new(), Vec::<Value>::new());
    for delta in events.iter().map(|event| &event["choices"][0]["delta"]) {
        thought += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            let function = &call["function"];
            if index == calls.len() {
                calls.push(json!({"name": function["name"], "arguments": ""}));
            }
            let more = function["arguments"].as_str().unwrap_or_default();
            let before = calls[index]["arguments"].as_str().unwrap();
            calls[index]["arguments"] = format!("{before}{more}").into();
        }
    }
    (thought, calls)
}
