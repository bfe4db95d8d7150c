//! The parts of a request that limits read.

use http::{Extensions, HeaderMap, Method, Request, Uri};
use std::fmt;

/// A request without its body: costs, keys and exemptions are read from it, whatever the type of the body.
///
/// ```
/// # use http::Request;
/// # use tollgate_http::RequestParts;
/// let request = Request::get("/files?name=a").header("host", "example.org").body("of any type")?;
/// let parts = RequestParts::of(&request);
/// assert_eq!((parts.method().as_str(), parts.uri().path()), ("GET", "/files"));
/// assert_eq!(parts.headers()["host"], "example.org");
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct RequestParts<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> RequestParts<'a> {
    /// The parts of `request`.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// The method.
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// The target.
    pub fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// The header fields, as the client or the last proxy sent them. They are not trustworthy.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// The extensions, which outer layers have added.
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }
}

impl fmt::Debug for RequestParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Header fields hold secrets.
        f.debug_struct("RequestParts")
            .field("method", self.method)
            .field("path", &self.uri.path())
            .finish_non_exhaustive()
    }
}
