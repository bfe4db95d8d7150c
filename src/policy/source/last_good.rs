//! A policy that a store keeps under a key: the version of each content that is seen there.

use crate::policy::file::{FileSpec, Format, Kinds, PolicyFileError};
use crate::policy::spec::PolicySpec;
use std::marker::PhantomData;
use std::path::Path;

/// The latest content under a key, and the latest one that was valid, as [one policy or those of a service](FileSpec): for a [`PolicySource`](super::PolicySource) that
/// reads a store.
///
/// ```
/// use tollgate::policy::source::LastGood;
/// use tollgate::policy::spec::PolicySpec;
///
/// let good = b"[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = 2\n".to_vec();
/// let (spec, mut last_good) = LastGood::<PolicySpec>::first("gate/policy.toml", Some(good.clone()))?;
/// assert_eq!(spec.legs.len(), 1);
/// assert!(last_good.see(None).unwrap().is_err(), "the key was deleted");
/// assert!(last_good.see(None).is_none(), "which is reported once");
/// assert!(last_good.see(Some(good)).is_none(), "that version is in force still");
/// # Ok::<(), tollgate::policy::file::PolicyFileError>(())
/// ```
#[derive(Debug)]
pub struct LastGood<S = PolicySpec> {
    key: Box<str>,
    format: Format,
    kinds: Kinds,
    given: Option<Vec<u8>>,
    applied: Vec<u8>,
    spec: PhantomData<fn() -> S>,
}

impl<S: FileSpec> LastGood<S> {
    /// The first version under `key`, whose name ends in `.toml` or `.json`; `None` when there is no such key. Its legs are of the
    /// [standard](Kinds::standard) kinds.
    ///
    /// # Errors
    /// [`PolicyFileError`] when there is no such key, its name ends otherwise, or its content is something else.
    pub fn first(key: &str, content: Option<Vec<u8>>) -> Result<(S, Self), PolicyFileError> {
        Self::first_with(key, content, &Kinds::standard())
    }

    /// The same for legs of these kinds.
    ///
    /// # Errors
    /// As those of [`first`](Self::first).
    pub fn first_with(key: &str, content: Option<Vec<u8>>, kinds: &Kinds) -> Result<(S, Self), PolicyFileError> {
        let of_key = |error: PolicyFileError| error.of_file(Path::new(key));
        let format = Format::of_path(Path::new(key));
        let format = format.ok_or_else(|| {
            of_key(PolicyFileError::unreadable(
                "its name ends in neither `.toml` nor `.json`",
            ))
        })?;
        let content = content.ok_or_else(|| of_key(nothing()))?;
        let spec = kinds.parse_bytes(&content, format).map_err(of_key)?;
        let last_good = Self {
            key: key.into(),
            format,
            kinds: kinds.clone(),
            given: Some(content.clone()),
            applied: content,
            spec: PhantomData,
        };
        Ok((spec, last_good))
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The version of a new `content`, or why it is none; each once.
    pub fn see(&mut self, content: Option<Vec<u8>>) -> Option<Result<S, PolicyFileError>> {
        if content == self.given {
            return None;
        }
        self.given = content;
        let Some(content) = &self.given else {
            return Some(Err(nothing().of_file(Path::new(&*self.key))));
        };
        if *content == self.applied {
            // It is back as it was before it was wrong, or gone.
            return None;
        }
        let version = self.kinds.parse_bytes(content, self.format);
        if version.is_ok() {
            self.applied.clone_from(content);
        }
        Some(version.map_err(|error| error.of_file(Path::new(&*self.key))))
    }
}

fn nothing() -> PolicyFileError {
    PolicyFileError::unreadable("there is no such key")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[[leg]]\nname = \"a\"\nkind = \"semaphore\"\nlimit = 2\n";

    fn content(text: &str) -> Option<Vec<u8>> {
        Some(text.into())
    }

    #[test]
    fn each_content_counts_once() {
        let (_, mut last_good) = LastGood::<PolicySpec>::first("gate/policy.toml", content(GOOD)).unwrap();
        assert!(last_good.see(content(GOOD)).is_none());
        let wrong = last_good
            .see(content(&GOOD.replace("limit", "limt")))
            .unwrap()
            .unwrap_err();
        assert_eq!(
            (wrong.file(), wrong.line(), wrong.column()),
            ("gate/policy.toml", Some(4), Some(1))
        );
        assert!(last_good.see(content(&GOOD.replace("limit", "limt"))).is_none());
        assert!(last_good.see(content(GOOD)).is_none(), "it is in force still");
        assert!(last_good.see(None).unwrap().is_err());
        assert!(last_good.see(None).is_none());
        assert!(last_good.see(content(&GOOD.replace('2', "3"))).unwrap().is_ok());
        assert!(last_good.see(content(GOOD)).unwrap().is_ok());
    }

    #[test]
    fn there_must_be_a_first_version() {
        for (key, text) in [
            ("policy", content(GOOD)),
            ("policy.toml", None),
            ("policy.json", content(GOOD)),
        ] {
            let error = LastGood::<PolicySpec>::first(key, text).map(drop).unwrap_err();
            assert_eq!(error.file(), key, "{error}");
        }
    }
}
