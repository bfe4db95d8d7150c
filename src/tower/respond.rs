//! What becomes of a refusal: an error of the service, or a response.

use super::refused::Refused;
use crate::core::limiter::Limiter;
use crate::core::refusal::Rejection;
use http::Response;
use std::fmt;

/// Turns refusals into what the service gives back. `B` is the body of its responses, `E` its error.
pub trait Respond<B, E>: Clone {
    /// The error of the limited service.
    type Error;

    /// Answers a request that was not admitted.
    ///
    /// # Errors
    /// When a refusal is to be an error.
    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<Response<B>, Self::Error>;

    /// Sees the head of each response to a request that was admitted by `limiter`, before it is given back.
    fn admitted<L: Limiter>(&self, response: &mut Response<B>, limiter: &L) {
        let _ = (response, limiter);
    }

    /// An error of the service itself.
    fn failed(&self, error: E) -> Self::Error;
}

/// A refusal is an error. What a layer does unless told otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsError;

impl<B, E> Respond<B, E> for AsError {
    type Error = LimitError<E>;
    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<Response<B>, Self::Error> {
        Err(LimitError::Refused(refused.rejection))
    }
    fn failed(&self, error: E) -> Self::Error {
        LimitError::Inner(error)
    }
}

/// A refusal is a response: a fallback, or what says that there is none. Made by
/// [`LimitLayer::refuse_with`](super::LimitLayer::refuse_with).
#[derive(Clone, Copy, Debug)]
pub struct AsResponse<F>(pub(super) F);

impl<B, E, F: Fn(&Rejection) -> Response<B> + Clone> Respond<B, E> for AsResponse<F> {
    type Error = E;
    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<Response<B>, E> {
        Ok((self.0)(&refused.rejection))
    }
    fn failed(&self, error: E) -> E {
        error
    }
}

/// Why a limited service has no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitError<E> {
    /// The request was not admitted, and has not reached the service.
    Refused(Rejection),
    /// The service failed.
    Inner(E),
}

impl<E> LimitError<E> {
    /// The refusal, if it is one.
    pub fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Refused(rejection) => Some(rejection),
            Self::Inner(_) => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for LimitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(rejection) => rejection.fmt(f),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for LimitError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(rejection) => Some(rejection),
            Self::Inner(error) => error.source(),
        }
    }
}
