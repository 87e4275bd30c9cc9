//! Parses the last part of a path.

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::api_error::ApiError;

/// The parsed last part of a path. If it cannot be parsed, the response is 404.
pub(crate) struct PathParam<T>(pub(crate) T);

impl<S, T> FromRequestParts<S> for PathParam<T>
where
    S: Send + Sync,
    T: FromStr<Err: Into<ApiError>>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Ok(Path(name)) = Path::<String>::from_request_parts(parts, state).await else {
            return Err(ApiError::not_found("the path is not UTF-8, so it names nothing here"));
        };
        name.parse().map(Self).map_err(Into::into)
    }
}
