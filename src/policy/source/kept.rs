//! A policy that a store keeps under a key: what is made of each content that is seen there.

use crate::policy::file::{Format, PolicyFileError};
use crate::policy::spec::PolicySpec;
use std::path::Path;

/// What was last seen, and what was last in force.
#[derive(Debug)]
pub(crate) struct Kept {
    key: Box<str>,
    format: Format,
    given: Option<Vec<u8>>,
    applied: Vec<u8>,
}

impl Kept {
    /// The first version under `key`, whose name ends in `.toml` or `.json`; `None` when there is no such key.
    pub(crate) fn first(key: &str, content: Option<Vec<u8>>) -> Result<(PolicySpec, Self), PolicyFileError> {
        let of_key = |error: PolicyFileError| error.of_file(Path::new(key));
        let format = Format::of_path(Path::new(key));
        let format = format.ok_or_else(|| {
            of_key(PolicyFileError::unreadable(
                "its name ends in neither `.toml` nor `.json`",
            ))
        })?;
        let content = content.ok_or_else(|| of_key(nothing()))?;
        let spec = PolicySpec::parse_bytes(&content, format).map_err(of_key)?;
        let kept = Self {
            key: key.into(),
            format,
            given: Some(content.clone()),
            applied: content,
        };
        Ok((spec, kept))
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// What is new about `content`: a version, or why it is none, once.
    pub(crate) fn see(&mut self, content: Option<Vec<u8>>) -> Option<Result<PolicySpec, PolicyFileError>> {
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
        let version = PolicySpec::parse_bytes(content, self.format);
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
        let (_, mut kept) = Kept::first("gate/policy.toml", content(GOOD)).unwrap();
        assert!(kept.see(content(GOOD)).is_none());
        let wrong = kept.see(content(&GOOD.replace("limit", "limt"))).unwrap().unwrap_err();
        assert_eq!(
            (wrong.file(), wrong.line(), wrong.column()),
            ("gate/policy.toml", Some(4), Some(1))
        );
        assert!(kept.see(content(&GOOD.replace("limit", "limt"))).is_none());
        assert!(kept.see(content(GOOD)).is_none(), "it is in force still");
        assert!(kept.see(None).unwrap().is_err());
        assert!(kept.see(None).is_none());
        assert!(kept.see(content(&GOOD.replace('2', "3"))).unwrap().is_ok());
        assert!(kept.see(content(GOOD)).unwrap().is_ok());
    }

    #[test]
    fn there_must_be_a_first_version() {
        for (key, text) in [
            ("policy", content(GOOD)),
            ("policy.toml", None),
            ("policy.json", content(GOOD)),
        ] {
            let error = Kept::first(key, text).map(drop).unwrap_err();
            assert_eq!(error.file(), key, "{error}");
        }
    }
}
