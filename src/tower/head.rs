//! What of a request the limits look at.

use http::{Extensions, HeaderMap, Method, Request, Uri};
use std::fmt;

/// A request without its body: what a price, a key and an exemption are read from. The type of the body does not matter
/// to any of them.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    /// The head of `request`.
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

    /// The header fields, as the client or the last proxy sent them: anybody can write anything there.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What layers outside this one have added.
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }
}

impl fmt::Debug for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Header fields hold secrets.
        f.debug_struct("Head")
            .field("method", self.method)
            .field("path", &self.uri.path())
            .finish_non_exhaustive()
    }
}
