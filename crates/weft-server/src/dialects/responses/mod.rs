//! OpenAI's Responses: `POST /v1/responses`, and those that are kept.

mod items;
mod offered;
mod request;
mod store;
mod writer;

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};

use self::store::{MAX_ITEMS_BYTES, Stored};
use self::writer::{Keeping, ResponsesWriter};
use super::Dialect;
use super::answer::{answer, count_tokens};
use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::http::{Body, PathParam};
use crate::requests::ChatRequest;

pub(crate) use self::request::ResponsesRequest;
pub(super) use self::store::Store;

/// Responses.
pub(super) const RESPONSES: Dialect = Dialect {
    prefixes: &["/v1/responses", "/responses"],
    header: None,
    routes: || {
        vec![
            ("/v1/responses", post(create)),
            ("/v1/responses/input_tokens", post(count)),
            ("/v1/responses/{id}", get(show).delete(delete)),
            ("/v1/responses/{id}/cancel", post(cancel)),
            ("/v1/responses/{id}/input_items", get(input_items)),
        ]
    },
    error: ApiError::json,
};

async fn create(
    State(app): State<Arc<App>>,
    body: Body<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let (body, keeping) = read(&app, body).await?;
    answer(&app, body, |answering| ResponsesWriter::new(answering, keeping)).await
}

/// The tokens of a request's prompt.
async fn count(
    State(app): State<Arc<App>>,
    mut body: Body<ResponsesRequest>,
) -> Result<Json<Value>, ApiError> {
    body.value.store = false;
    let (body, _) = read(&app, body).await?;
    let n = count_tokens(&app, body).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": n})))
}

/// The chat of a request, and what is kept of it.
async fn read(
    app: &App,
    body: Body<ResponsesRequest>,
) -> Result<(Body<ChatRequest>, Keeping), ApiError> {
    let Body { value: mut request, bytes, share } = body;
    let store = Arc::clone(&app.dialects.responses);
    let previous = match &request.previous {
        Some(id) => Some(store.find(id).ok_or_else(|| unknown_previous(id))?),
        None => None,
    };
    let kept = store.with_items(&items::all_referenced(&request.input));
    let read_again = previous.iter().chain(&kept).map(|stored| stored.bytes()).sum::<usize>();
    let bytes = bytes + read_again;
    let echo = request.echo.take();
    let read = move || {
        items::resolve(&mut request.input, &kept)?;
        let earlier = previous.as_deref().map(history).transpose()?.unwrap_or_default();
        let items = request.store.then(|| to_keep(&earlier, &request.input)).transpose()?;
        Ok((request.chat(&earlier)?, items))
    };
    let (chat, items) = off_thread(bytes, read).await?;
    let keeping = Keeping { store, items, echo };
    Ok((Body { value: chat, bytes, share }, keeping))
}

/// What is kept with a response: the items before it, as JSON. A conversation that each response
/// continued could otherwise grow to hundreds of megabytes of parsed items.
fn to_keep(earlier: &[Value], input: &[Value]) -> Result<(String, String), ApiError> {
    let json = |items: &[Value]| {
        serde_json::to_string(items).map_err(|_| ApiError::fault("the input cannot be kept"))
    };
    let (earlier, input) = (json(earlier)?, json(input)?);
    let bytes = earlier.len() + input.len();
    if bytes > MAX_ITEMS_BYTES {
        let message = format!(
            "the items of this conversation have {bytes} bytes of JSON, and a response is kept \
             with at most {MAX_ITEMS_BYTES}; set store to false, or send fewer items without \
             previous_response_id"
        );
        return Err(ApiError::invalid(message).param("input"));
    }
    Ok((earlier, input))
}

/// The items of a response and of everything before it.
fn history(stored: &Stored) -> Result<Vec<Value>, ApiError> {
    let broken = |_| ApiError::fault("a kept response cannot be read");
    let mut items: Vec<Value> = serde_json::from_str(&stored.earlier).map_err(broken)?;
    items.extend(serde_json::from_str::<Vec<Value>>(&stored.input).map_err(broken)?);
    let mut response: Value = serde_json::from_str(&stored.response).map_err(broken)?;
    if let Value::Array(output) = response["output"].take() {
        items.extend(output);
    }
    Ok(items)
}

fn unknown_previous(id: &str) -> ApiError {
    let message = format!(
        "Previous response with id {id:?} not found: responses with store are held in memory for \
         an hour, as long as there is room; send the whole conversation as input"
    );
    ApiError::invalid(message).code("previous_response_not_found").param("previous_response_id")
}

fn find(app: &App, id: &str) -> Result<Arc<Stored>, ApiError> {
    app.dialects.responses.find(id).ok_or_else(|| unknown(id))
}

fn unknown(id: &str) -> ApiError {
    let message = format!("Response with id {id:?} not found: it was never kept, or is no longer");
    ApiError::not_found(message).code("response_not_found")
}

async fn show(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<String>,
) -> Result<Response, ApiError> {
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, find(&app, &id)?.response.clone()).into_response())
}

async fn delete(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<String>,
) -> Result<Json<Value>, ApiError> {
    match app.dialects.responses.remove(&id) {
        true => Ok(Json(json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(unknown(&id)),
    }
}

/// Nothing runs in the background, so there is nothing to cancel.
async fn cancel(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<String>,
) -> Result<Response, ApiError> {
    find(&app, &id)?;
    Err(ApiError::invalid("Cannot cancel a synchronous response: it has ended"))
}

/// Which of the items are listed.
#[derive(Deserialize)]
struct Listing {
    limit: Option<String>,
    order: Option<Order>,
    after: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Order {
    Asc,
    #[default]
    Desc,
}

async fn input_items(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<String>,
    listing: Result<Query<Listing>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let refused = |what: &str| Err(ApiError::invalid(what));
    let Ok(Query(listing)) = listing else {
        return refused("order must be asc or desc, and after the id of an item");
    };
    let limit = listing.limit.as_deref().map_or(Some(20), |limit| limit.parse().ok());
    let Some(limit) = limit.filter(|limit| (1..=100).contains(limit)) else {
        return refused("limit must be a whole number from 1 to 100");
    };
    let stored = find(&app, &id)?;
    off_thread(stored.input.len(), move || {
        let broken = |_| ApiError::fault("a kept response cannot be read");
        let mut items: Vec<Value> = serde_json::from_str(&stored.input).map_err(broken)?;
        if listing.order.unwrap_or_default() == Order::Desc {
            items.reverse();
        }
        let skipped = match &listing.after {
            Some(after) => {
                items.iter().position(|item| item["id"] == **after).map_or(0, |at| at + 1)
            }
            None => 0,
        };
        let has_more = items.len() > skipped + limit;
        let data: Vec<Value> = items.into_iter().skip(skipped).take(limit).collect();
        let id_of = |item: Option<&Value>| item.map(|item| item["id"].clone());
        let (first, last) = (id_of(data.first()), id_of(data.last()));
        Ok(Json(json!({"object": "list", "data": data, "first_id": first, "last_id": last,
            "has_more": has_more})))
    })
    .await
}
