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
pub struct Key {
    name: Arc<str>,
    /// The bytes that decide where it lies.
    tag: usize,
}

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
        let tag = name.len();
        Ok(Self { name: name.into(), tag })
    }

    /// The name of one of several keys that lie together in a store of many servers, by the name of all of them: so that one step can
    /// decide on several.
    ///
    /// # Errors
    /// As [`new`](Self::new), of both names together.
    ///
    /// ```
    /// # use tollgate::remote::Key;
    /// let key = Key::new("budgets")?.with(":acme")?;
    /// assert_eq!((key.as_str(), key.tag()), ("budgets:acme", "budgets"));
    /// # Ok::<(), tollgate::remote::RemoteError>(())
    /// ```
    pub fn with(&self, rest: &str) -> Result<Self, RemoteError> {
        let tag = self.tag;
        Ok(Self {
            tag,
            ..Self::new(format!("{self}{rest}"))?
        })
    }

    /// The part of the name that decides on which server it lies, such as the hash tag in a cluster of Redis.
    pub fn tag(&self) -> &str {
        &self.name[..self.tag]
    }

    /// The name under which a store keeps the limiter of this [kind](super::Rule::kind). It differs from that of other kinds.
    pub fn of_kind(&self, kind: &str) -> Self {
        let name: Arc<str> = format!("{self}.{kind}").into();
        let tag = name.len();
        Self { name, tag }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
