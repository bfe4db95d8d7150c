//! Classifies responses: the outcome that a response reports of the resource behind it.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use tollgate::Outcome;

/// The outcome as far as the head of the response tells it.
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use tollgate::Outcome;
/// # use tollgate_http::{Classify, GrpcCodes, ResponseOutcome, StatusCodes};
/// let (ok, none) = (StatusCode::OK, HeaderMap::new());
/// assert_eq!(Classify::<()>::response(&StatusCodes, ok, &none), ResponseOutcome::Known(Outcome::Success));
/// assert_eq!(Classify::<()>::response(&GrpcCodes, ok, &none), ResponseOutcome::InTrailers);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// This outcome, if the body ends as it should.
    Known(Outcome),
    /// The trailers will tell.
    InTrailers,
}

/// Classifies how an admitted request ended, for breakers and adaptive limits. `E` is the error of the service.
///
/// It is asked once, at the end: of the body if there is a response, else of the error. A future that panics, or that is
/// dropped before there is a response (the client has left), is [`Ignored`](Outcome::Ignored).
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use tollgate::Outcome;
/// # use tollgate_http::{Classify, ResponseOutcome};
/// /// A 404 of this service means that a shard is down.
/// #[derive(Clone)]
/// struct Shards;
/// impl<E> Classify<E> for Shards {
///     fn response(&self, status: StatusCode, _: &HeaderMap) -> ResponseOutcome {
///         ResponseOutcome::Known(if status == 404 { Outcome::Failure } else { Outcome::Success })
///     }
///     fn error(&self, _: &E) -> Outcome {
///         Outcome::Failure
///     }
/// }
/// let not_found = Classify::<()>::response(&Shards, StatusCode::NOT_FOUND, &HeaderMap::new());
/// assert_eq!(not_found, ResponseOutcome::Known(Outcome::Failure));
/// ```
pub trait Classify<E>: Clone {
    /// Classifies by the head of a response.
    fn response(&self, status: StatusCode, headers: &HeaderMap) -> ResponseOutcome;

    /// Classifies by the trailers; `None` if the body ended without trailers. Asked only after [`ResponseOutcome::InTrailers`].
    fn trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        let _ = trailers;
        Outcome::Success
    }

    /// Classifies a body that was dropped before its end: the client has left, or has all it wanted. `head` is the result of
    /// [`response`](Self::response).
    ///
    /// By default the outcome of the head counts: an early leave is no evidence against a service that began to answer well, and
    /// without such responses a breaker would see too high a failure rate. If the outcome was due in the trailers, it is
    /// [`Ignored`](Outcome::Ignored).
    ///
    /// The client decides how long such a request takes. In front of an adaptive limit of long streams, return `Ignored`.
    fn dropped(&self, head: ResponseOutcome) -> Outcome {
        match head {
            ResponseOutcome::Known(outcome) => outcome,
            ResponseOutcome::InTrailers => Outcome::Ignored,
        }
    }

    /// Classifies a body that the service broke off with an error. `head` is the result of [`response`](Self::response).
    ///
    /// By default it is a [`Failure`](Outcome::Failure) if the head was good or left it to the trailers; `Overload` and `Ignored`
    /// stay.
    fn broken(&self, head: ResponseOutcome) -> Outcome {
        match head {
            ResponseOutcome::Known(Outcome::Success) | ResponseOutcome::InTrailers => Outcome::Failure,
            ResponseOutcome::Known(outcome) => outcome,
        }
    }

    /// Classifies an error of the service, which then has no response.
    fn error(&self, error: &E) -> Outcome {
        let _ = error;
        Outcome::Failure
    }
}

/// Classifies by the status of HTTP, for a server.
///
/// 503 and 504 are [`Overload`](Outcome::Overload), other 5xx are [`Failure`](Outcome::Failure), and all others are
/// [`Success`](Outcome::Success), also a 404: the service works. 408 and 429 are [`Ignored`](Outcome::Ignored): the client causes
/// them, and a client that could choose overload would steer an adaptive limit that others share. In front of an upstream use
/// [`ClientStatusCodes`].
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use tollgate::Outcome;
/// # use tollgate_http::{Classify, ResponseOutcome, StatusCodes};
/// let of = |status: u16| {
///     let status = StatusCode::from_u16(status).expect("a status");
///     Classify::<()>::response(&StatusCodes, status, &HeaderMap::new())
/// };
/// let expected = [Outcome::Success, Outcome::Success, Outcome::Ignored, Outcome::Failure, Outcome::Overload];
/// assert_eq!([200, 404, 429, 500, 503].map(of), expected.map(ResponseOutcome::Known));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusCodes;

/// Classifies by the status of HTTP, for a client: as [`StatusCodes`], but 408 and 429 are [`Overload`](Outcome::Overload), since
/// they mean that the upstream is overloaded.
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use tollgate::Outcome;
/// # use tollgate_http::{Classify, ClientStatusCodes, ResponseOutcome};
/// let refused = Classify::<()>::response(&ClientStatusCodes, StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new());
/// assert_eq!(refused, ResponseOutcome::Known(Outcome::Overload));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientStatusCodes;

fn by_status(status: StatusCode, by_client: Outcome) -> ResponseOutcome {
    ResponseOutcome::Known(match status.as_u16() {
        408 | 429 => by_client,
        503 | 504 => Outcome::Overload,
        500.. => Outcome::Failure,
        _ => Outcome::Success,
    })
}

impl<E> Classify<E> for StatusCodes {
    fn response(&self, status: StatusCode, _: &HeaderMap) -> ResponseOutcome {
        by_status(status, Outcome::Ignored)
    }
}

impl<E> Classify<E> for ClientStatusCodes {
    fn response(&self, status: StatusCode, _: &HeaderMap) -> ResponseOutcome {
        by_status(status, Outcome::Overload)
    }
}

/// Classifies by the status of HTTP, by a closure. Made by [`LimitLayer::classify_status`](super::LimitLayer::classify_status).
///
/// ```
/// # use http::StatusCode;
/// # use std::sync::Arc;
/// # use tollgate::{Outcome, Semaphore};
/// # use tollgate_http::LimitLayer;
/// let of = |status: StatusCode| if status.is_server_error() { Outcome::Failure } else { Outcome::Success };
/// assert_eq!(of(StatusCode::BAD_GATEWAY), Outcome::Failure);
/// let _layer = LimitLayer::new(Arc::new(Semaphore::new(8))).classify_status(of);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ByStatus<F>(pub(super) F);

impl<E, F: Fn(StatusCode) -> Outcome + Clone> Classify<E> for ByStatus<F> {
    fn response(&self, status: StatusCode, _: &HeaderMap) -> ResponseOutcome {
        ResponseOutcome::Known((self.0)(status))
    }
}

/// Classifies by the status of gRPC, in the head or the trailers, for a server. `UNAVAILABLE` is [`Overload`](Outcome::Overload);
/// `UNKNOWN`, `INTERNAL`, `DATA_LOSS`, and a call that ends without a status, are [`Failure`](Outcome::Failure); all others are
/// [`Success`](Outcome::Success). `CANCELLED` is [`Ignored`](Outcome::Ignored), and so are `DEADLINE_EXCEEDED` and
/// `RESOURCE_EXHAUSTED`: the client chooses its deadline, and exhausts its quota. In front of an upstream use
/// [`ClientGrpcCodes`].
///
/// A response of another content type than `application/grpc` is classified by its status of HTTP, as [`StatusCodes`] does: health
/// checks and metrics may share the port. A response without a content type counts as one of gRPC if its status is 200.
///
/// ```
/// # use http::{HeaderMap, HeaderValue};
/// # use tollgate::Outcome;
/// # use tollgate_http::{Classify, GrpcCodes};
/// let of = |code: &'static str| {
///     let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static(code))]);
///     Classify::<()>::trailers(&GrpcCodes, Some(&trailers))
/// };
/// assert_eq!([of("0"), of("13"), of("14"), of("8")], [Outcome::Success, Outcome::Failure, Outcome::Overload, Outcome::Ignored]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcCodes;

/// Classifies by the status of gRPC, for a client: as [`GrpcCodes`], but `DEADLINE_EXCEEDED` and `RESOURCE_EXHAUSTED` are
/// [`Overload`](Outcome::Overload). A response of another content type is classified as [`ClientStatusCodes`] does.
///
/// ```
/// # use http::{HeaderMap, HeaderValue, StatusCode};
/// # use tollgate::Outcome;
/// # use tollgate_http::{Classify, ClientGrpcCodes};
/// let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("8"))]);
/// let outcome = Classify::<()>::trailers(&ClientGrpcCodes, Some(&trailers));
/// assert_eq!(outcome, Outcome::Overload, "RESOURCE_EXHAUSTED");
/// # let _: StatusCode = StatusCode::OK;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientGrpcCodes;

fn by_code(headers: &HeaderMap, by_client: Outcome) -> Option<Outcome> {
    let code = headers.get("grpc-status")?;
    let code = code.to_str().ok().and_then(|code| code.parse::<u32>().ok());
    Some(match code {
        Some(1) => Outcome::Ignored,
        Some(4 | 8) => by_client,
        Some(14) => Outcome::Overload,
        Some(2 | 13 | 15) | None => Outcome::Failure,
        Some(_) => Outcome::Success,
    })
}

fn by_grpc(status: StatusCode, headers: &HeaderMap, by_client: Outcome) -> ResponseOutcome {
    match by_code(headers, by_client) {
        Some(outcome) => ResponseOutcome::Known(outcome),
        None if status == StatusCode::OK && may_be_grpc(headers) => ResponseOutcome::InTrailers,
        // A proxy answered in place of the server, or a service of HTTP beside it.
        None => by_status(status, by_client),
    }
}

/// False if the content type is another than `application/grpc`, with or without a suffix such as `+proto`.
fn may_be_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    headers.get(CONTENT_TYPE).is_none_or(|content_type| {
        let name = content_type.as_bytes().split_at_checked(GRPC.len());
        name.is_some_and(|(name, rest)| {
            name.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
        })
    })
}

impl<E> Classify<E> for GrpcCodes {
    fn response(&self, status: StatusCode, headers: &HeaderMap) -> ResponseOutcome {
        by_grpc(status, headers, Outcome::Ignored)
    }

    fn trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        let outcome = trailers.and_then(|trailers| by_code(trailers, Outcome::Ignored));
        outcome.unwrap_or(Outcome::Failure)
    }
}

impl<E> Classify<E> for ClientGrpcCodes {
    fn response(&self, status: StatusCode, headers: &HeaderMap) -> ResponseOutcome {
        by_grpc(status, headers, Outcome::Overload)
    }

    fn trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        let outcome = trailers.and_then(|trailers| by_code(trailers, Outcome::Overload));
        outcome.unwrap_or(Outcome::Failure)
    }
}
