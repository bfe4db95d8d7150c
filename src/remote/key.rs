//! Names of limiters at a store.

use super::error::RemoteError;
use std::fmt;
use std::sync::Arc;

/// The name of a limiter at a store. Limiters of the same kind and name share their limit; permits, a rate and a window of one
/// name are three limits.
///
/// 1 to 200 bytes, without control characters, spaces and braces; neither `.` nor `..`.
///
/// ```
/// # use tollgate::remote::Key;
/// assert_eq!(Key::new("reports:in-flight")?.as_str(), "reports:in-flight");
/// assert!(Key::new("a{b}").is_err());
/// assert!(Key::new("..").is_err());
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 200;

    /// Checks a name.
    ///
    /// # Errors
    /// [`RemoteError::Key`] when it is empty, too long, or has a forbidden character.
    pub fn new(name: impl Into<Box<str>>) -> Result<Self, RemoteError> {
        let name = name.into();
        let odd = |c: char| c.is_control() || c.is_whitespace() || c == '{' || c == '}';
        let is_path = matches!(&*name, "." | "..");
        if is_path || name.is_empty() || name.len() > Self::MAX_BYTES || name.contains(odd) {
            return Err(RemoteError::Key { given: name });
        }
        Ok(Self(name.into()))
    }

    /// The name under which a store keeps the limiter of this [kind](super::Rule::kind). It differs from that of other kinds.
    pub fn of_kind(&self, kind: &str) -> Self {
        Self(format!("{self}.{kind}").into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
