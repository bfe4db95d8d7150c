//! What a response says of the resource behind it.

use crate::limiter::Outcome;
use http::{HeaderMap, StatusCode};

/// What is known of the outcome when the head of the response has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This, if the body ends as it should.
    Is(Outcome),
    /// The trailers will say.
    InTrailers,
}

/// Says how an admitted request ended: what breakers and adaptive limits learn from. `E` is the error of the service.
///
/// A body that breaks off is a [`Failure`](Outcome::Failure). A future that is dropped (the client has left) is
/// [`Ignored`](Outcome::Ignored), and so is one that panics, and a body that is dropped before its end, unless its head was a
/// failure already.
pub trait Classify<E>: Clone {
    /// By the head of a response.
    fn response(&self, status: StatusCode, headers: &HeaderMap) -> Verdict;

    /// By the trailers; none came when the body ended without. Asked only after [`Verdict::InTrailers`].
    fn trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        let _ = trailers;
        Outcome::Success
    }

    /// By an error of the service, which has no response then.
    fn error(&self, error: &E) -> Outcome {
        let _ = error;
        Outcome::Failure
    }
}

/// By the status of HTTP: 408, 429, 503 and 504 are [`Overload`](Outcome::Overload), other 5xx are
/// [`Failure`](Outcome::Failure), and all else is [`Success`](Outcome::Success), a 404 as well: whoever answers so works.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusCodes;

impl<E> Classify<E> for StatusCodes {
    fn response(&self, status: StatusCode, _: &HeaderMap) -> Verdict {
        Verdict::Is(match status.as_u16() {
            408 | 429 | 503 | 504 => Outcome::Overload,
            500.. => Outcome::Failure,
            _ => Outcome::Success,
        })
    }
}

/// By the status of HTTP, in a way of your own. Made by [`LimitLayer::classify_status`](super::LimitLayer::classify_status).
#[derive(Clone, Copy, Debug)]
pub struct ByStatus<F>(pub(super) F);

impl<E, F: Fn(StatusCode) -> Outcome + Clone> Classify<E> for ByStatus<F> {
    fn response(&self, status: StatusCode, _: &HeaderMap) -> Verdict {
        Verdict::Is((self.0)(status))
    }
}

/// By the status of gRPC, in the head or the trailers. `DEADLINE_EXCEEDED`, `RESOURCE_EXHAUSTED` and `UNAVAILABLE` are
/// [`Overload`](Outcome::Overload); `UNKNOWN`, `INTERNAL`, `DATA_LOSS`, and a call that ends without a status, are
/// [`Failure`](Outcome::Failure); `CANCELLED` is [`Ignored`](Outcome::Ignored); all else is [`Success`](Outcome::Success).
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcCodes;

impl GrpcCodes {
    fn outcome(headers: &HeaderMap) -> Option<Outcome> {
        let code = headers.get("grpc-status")?;
        let code = code.to_str().ok().and_then(|code| code.parse::<u32>().ok());
        Some(match code {
            Some(1) => Outcome::Ignored,
            Some(4 | 8 | 14) => Outcome::Overload,
            Some(2 | 13 | 15) | None => Outcome::Failure,
            Some(_) => Outcome::Success,
        })
    }
}

impl<E> Classify<E> for GrpcCodes {
    fn response(&self, status: StatusCode, headers: &HeaderMap) -> Verdict {
        match Self::outcome(headers) {
            Some(outcome) => Verdict::Is(outcome),
            None if status.is_success() => Verdict::InTrailers,
            // A proxy answered in place of the server.
            None => Classify::<E>::response(&StatusCodes, status, headers),
        }
    }

    fn trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        trailers.and_then(Self::outcome).unwrap_or(Outcome::Failure)
    }
}
