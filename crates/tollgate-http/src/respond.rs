//! Turns a refusal into an error of the service, or into a response.

use super::refused::Refused;
use http::Response;
use std::fmt;
use tollgate::{Limiter, Refusal};

/// Turns refusals into results of the service. `B` is the body of its responses, `E` its error.
///
/// ```
/// # use http::{Response, StatusCode};
/// # use tollgate::{Limiter, LimiterExt, Semaphore};
/// # use tollgate_http::{Refused, Respond};
/// /// Answers with the name of the leg.
/// #[derive(Clone)]
/// struct Named;
/// impl<E> Respond<String, E> for Named {
///     type Error = E;
///     fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<Response<String>, E> {
///         let mut response = Response::new(refused.refusal.leg().to_string());
///         *response.status_mut() = refused.status();
///         Ok(response)
///     }
///     fn failed(&self, error: E) -> E {
///         error
///     }
/// }
/// let refusal = Semaphore::new(0).try_admit(1).unwrap_err();
/// let response = Respond::<_, ()>::refused(&Named, Refused::<Semaphore>::early(refusal)).unwrap();
/// assert_eq!((response.status(), &**response.body()), (StatusCode::SERVICE_UNAVAILABLE, "semaphore"));
/// ```
pub trait Respond<B, E>: Clone {
    /// The error of the limited service.
    type Error;

    /// Answers a request that was not admitted.
    ///
    /// # Errors
    /// If a refusal is an error of the service.
    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<Response<B>, Self::Error>;

    /// Sees the head of each response to a request that `limiter` has admitted, before the response is returned.
    fn admitted<L: Limiter>(&self, response: &mut Response<B>, limiter: &L) {
        let _ = (response, limiter);
    }

    /// Converts an error of the service inside.
    fn failed(&self, error: E) -> Self::Error;
}

/// Turns a refusal into an error: the default of a layer.
///
/// ```
/// # use tollgate::{LimiterExt, Semaphore};
/// # use tollgate_http::{AsError, LimitError, Refused, Respond};
/// let refusal = Semaphore::new(0).try_admit(1).unwrap_err();
/// let refused = Refused::<Semaphore>::early(refusal);
/// let answer = Respond::<(), std::io::Error>::refused(&AsError, refused);
/// assert!(matches!(answer, Err(LimitError::Refused(found)) if found == refusal));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AsError;

impl<B, E> Respond<B, E> for AsError {
    type Error = LimitError<E>;
    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<Response<B>, Self::Error> {
        Err(LimitError::Refused(refused.refusal))
    }
    fn failed(&self, error: E) -> Self::Error {
        LimitError::Inner(error)
    }
}

/// Turns a refusal into a response, such as a fallback. Made by
/// [`LimitLayer::refuse_with`](super::LimitLayer::refuse_with).
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use tollgate::{Refusal, Semaphore};
/// # use tollgate_http::LimitLayer;
/// # use tower::{Layer, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let busy = |_: &Refusal| {
///     let mut response = Response::new(Empty::<&[u8]>::new());
///     *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
///     response
/// };
/// let layer = LimitLayer::new(Arc::new(Semaphore::new(0))).refuse_with(busy);
/// let service = layer.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// assert_eq!(service.oneshot(Request::new(())).await?.status(), 503);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AsResponse<F>(pub(super) F);

impl<B, E, F: Fn(&Refusal) -> Response<B> + Clone> Respond<B, E> for AsResponse<F> {
    type Error = E;
    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<Response<B>, E> {
        Ok((self.0)(&refused.refusal))
    }
    fn failed(&self, error: E) -> E {
        error
    }
}

/// Why a limited service has no response.
///
/// ```
/// # use tollgate::{LimiterExt, Semaphore};
/// # use tollgate_http::LimitError;
/// let refusal = Semaphore::new(0).try_admit(1).unwrap_err();
/// let refused = LimitError::<std::io::Error>::Refused(refusal);
/// assert_eq!(refused.refusal().map(|refusal| refusal.leg()), Some("semaphore"));
/// assert!(LimitError::Inner("broken").refusal().is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitError<E> {
    /// The request was not admitted, and has not reached the service.
    Refused(Refusal),
    /// The service failed.
    Inner(E),
}

impl<E> LimitError<E> {
    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Inner(_) => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for LimitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for LimitError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Inner(error) => error.source(),
        }
    }
}
