//! The part of a path that names something, as what it names.

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::api_error::ApiError;

/// What the last part of a path names. One that cannot be read names nothing.
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
