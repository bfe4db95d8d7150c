//! What a response says of the resource behind it.

use crate::core::limiter::Outcome;
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
/// Asked once, when the end has come: of the body if there is a response, else of the error. A future that is dropped before
/// there is a response (the client has left), or that panics, is [`Ignored`](Outcome::Ignored).
pub trait Classify<E>: Clone {
    /// By the head of a response.
    fn response(&self, status: StatusCode, headers: &HeaderMap) -> Verdict;

    /// By the trailers; none came when the body ended without. Asked only after [`Verdict::InTrailers`].
    fn trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        let _ = trailers;
        Outcome::Success
    }

    /// A body that was dropped before its end: the client has left, or had what it wanted. `head` is what
    /// [`response`](Self::response) said.
    ///
    /// What the head said, unless implemented: who leaves early says nothing against a service that had begun to answer well,
    /// and were good responses left out, a breaker would see more failures than there are. What the trailers would have said
    /// is [`Ignored`](Outcome::Ignored).
    ///
    /// How long such a request took is up to the client as well. Where that matters, before an adaptive limit of long
    /// streams, say `Ignored`.
    fn dropped(&self, head: Verdict) -> Outcome {
        match head {
            Verdict::Is(outcome) => outcome,
            Verdict::InTrailers => Outcome::Ignored,
        }
    }

    /// A body that the service broke off with an error. `head` is what [`response`](Self::response) said.
    ///
    /// A [`Failure`](Outcome::Failure) unless implemented, where the head was good or left it to the trailers; an `Overload`
    /// stays one, and what is ignored stays so.
    fn broken(&self, head: Verdict) -> Outcome {
        match head {
            Verdict::Is(Outcome::Success) | Verdict::InTrailers => Outcome::Failure,
            Verdict::Is(outcome) => outcome,
        }
    }

    /// By an error of the service, which has no response then.
    fn error(&self, error: &E) -> Outcome {
        let _ = error;
        Outcome::Failure
    }
}

/// By the status of HTTP, as a server sees it: 503 and 504 are [`Overload`](Outcome::Overload), other 5xx are
/// [`Failure`](Outcome::Failure), and all else is [`Success`](Outcome::Success), a 404 as well: whoever answers so works.
/// 408 and 429 are [`Ignored`](Outcome::Ignored): a server gives them for what the client did, and a client that could choose
/// overload would steer an adaptive limit that others share. In front of an upstream use [`ClientStatusCodes`].
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusCodes;

/// By the status of HTTP, as a client sees it: as [`StatusCodes`], but 408 and 429 are [`Overload`](Outcome::Overload), since
/// with them an upstream says that it is asked too much.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientStatusCodes;

fn by_status(status: StatusCode, told_off: Outcome) -> Verdict {
    Verdict::Is(match status.as_u16() {
        408 | 429 => told_off,
        503 | 504 => Outcome::Overload,
        500.. => Outcome::Failure,
        _ => Outcome::Success,
    })
}

impl<E> Classify<E> for StatusCodes {
    fn response(&self, status: StatusCode, _: &HeaderMap) -> Verdict {
        by_status(status, Outcome::Ignored)
    }
}

impl<E> Classify<E> for ClientStatusCodes {
    fn response(&self, status: StatusCode, _: &HeaderMap) -> Verdict {
        by_status(status, Outcome::Overload)
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

/// By the status of gRPC, in the head or the trailers, as a server sees it. `UNAVAILABLE` is [`Overload`](Outcome::Overload);
/// `UNKNOWN`, `INTERNAL`, `DATA_LOSS`, and a call that ends without a status, are [`Failure`](Outcome::Failure); all else is
/// [`Success`](Outcome::Success). `CANCELLED` is [`Ignored`](Outcome::Ignored), and so are `DEADLINE_EXCEEDED` and
/// `RESOURCE_EXHAUSTED`: the client chooses its deadline, and exhausts its quota. In front of an upstream use
/// [`ClientGrpcCodes`].
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcCodes;

/// By the status of gRPC, as a client sees it: as [`GrpcCodes`], but `DEADLINE_EXCEEDED` and `RESOURCE_EXHAUSTED` are
/// [`Overload`](Outcome::Overload).
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientGrpcCodes;

fn by_code(headers: &HeaderMap, told_off: Outcome) -> Option<Outcome> {
    let code = headers.get("grpc-status")?;
    let code = code.to_str().ok().and_then(|code| code.parse::<u32>().ok());
    Some(match code {
        Some(1) => Outcome::Ignored,
        Some(4 | 8) => told_off,
        Some(14) => Outcome::Overload,
        Some(2 | 13 | 15) | None => Outcome::Failure,
        Some(_) => Outcome::Success,
    })
}

fn by_grpc(status: StatusCode, headers: &HeaderMap, told_off: Outcome) -> Verdict {
    match by_code(headers, told_off) {
        Some(outcome) => Verdict::Is(outcome),
        None if status.is_success() => Verdict::InTrailers,
        // A proxy answered in place of the server.
        None => by_status(status, told_off),
    }
}

impl<E> Classify<E> for GrpcCodes {
    fn response(&self, status: StatusCode, headers: &HeaderMap) -> Verdict {
        by_grpc(status, headers, Outcome::Ignored)
    }

    fn trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        let outcome = trailers.and_then(|trailers| by_code(trailers, Outcome::Ignored));
        outcome.unwrap_or(Outcome::Failure)
    }
}

impl<E> Classify<E> for ClientGrpcCodes {
    fn response(&self, status: StatusCode, headers: &HeaderMap) -> Verdict {
        by_grpc(status, headers, Outcome::Overload)
    }

    fn trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        let outcome = trailers.and_then(|trailers| by_code(trailers, Outcome::Overload));
        outcome.unwrap_or(Outcome::Failure)
    }
}
