//! A reader of JSON as the standard has it, RFC 8259, in which each key and value has its place in the text.

use super::error::{Fault, PolicyFileError};
use super::tree::{Entry, Node, Value};
use std::collections::HashSet;

/// How deep arrays and objects may lie in each other. The reader calls itself for each.
const MAX_DEPTH: usize = 128;

/// Reads JSON.
pub(super) fn json(text: &str) -> Result<Node, PolicyFileError> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    reader.skip_blanks();
    if reader.peek().is_none() {
        return Err(reader.error(text.len(), "the file is empty"));
    }
    let node = reader.value()?;
    reader.skip_blanks();
    match reader.peek() {
        None => Ok(node),
        Some(_) => Err(reader.unexpected("the end of the file")),
    }
}

struct Reader<'a> {
    text: &'a str,
    /// The next byte.
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self) -> Result<Node, PolicyFileError> {
        let at = self.at;
        let value = match self.peek() {
            Some(b'{') => self.object()?,
            Some(b'[') => self.array()?,
            Some(b'"') => Value::Text(self.string()?),
            Some(b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => self.word()?,
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Node { at, value })
    }

    fn object(&mut self) -> Result<Value, PolicyFileError> {
        let (mut entries, mut keys) = (Vec::new(), HashSet::new());
        self.items("object", b'}', |reader| {
            let at = reader.at;
            let key = reader.key()?;
            if !keys.insert(key.clone()) {
                let given = key.into();
                return Err(PolicyFileError::at(reader.text, at, Fault::DoubleKey { given }));
            }
            let node = reader.value()?;
            entries.push(Entry { key, at, node });
            Ok(())
        })?;
        Ok(Value::Table(entries))
    }

    /// Reads a key, and its colon.
    fn key(&mut self) -> Result<String, PolicyFileError> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("a key in double quotes"));
        }
        let key = self.string()?;
        self.skip_blanks();
        if self.peek() != Some(b':') {
            return Err(self.unexpected("a colon"));
        }
        self.at += 1;
        self.skip_blanks();
        Ok(key)
    }

    fn array(&mut self) -> Result<Value, PolicyFileError> {
        let mut nodes = Vec::new();
        self.items("array", b']', |reader| {
            nodes.push(reader.value()?);
            Ok(())
        })?;
        Ok(Value::List(nodes))
    }

    /// Reads both brackets of `kind`, and by `item` what lies between them and the commas.
    fn items(
        &mut self,
        kind: &str,
        close: u8,
        mut item: impl FnMut(&mut Self) -> Result<(), PolicyFileError>,
    ) -> Result<(), PolicyFileError> {
        let open = self.at;
        if self.depth == MAX_DEPTH {
            return Err(self.error(open, format!("more than {MAX_DEPTH} arrays and objects in each other")));
        }
        self.depth += 1;
        self.at += 1;
        let mut comma = None;
        loop {
            self.skip_blanks();
            match (self.peek(), comma) {
                (None, _) => return Err(self.error(open, format!("unterminated {kind}"))),
                (Some(byte), None) if byte == close => break,
                (Some(byte), Some(comma)) if byte == close => return Err(self.error(comma, "trailing comma")),
                _ => item(self)?,
            }
            self.skip_blanks();
            match self.peek() {
                None => return Err(self.error(open, format!("unterminated {kind}"))),
                Some(b',') => comma = Some(self.at),
                Some(byte) if byte == close => break,
                Some(_) => return Err(self.unexpected("a comma")),
            }
            self.at += 1;
        }
        self.at += 1;
        self.depth -= 1;
        Ok(())
    }

    /// Reads a number, `true`, `false` or `null`.
    fn word(&mut self) -> Result<Value, PolicyFileError> {
        let rest = self.rest();
        let is_end = |c: char| !c.is_ascii_alphanumeric() && !"+-._".contains(c);
        let word = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        let value = match word {
            "true" => Value::Truth(true),
            "false" => Value::Truth(false),
            "null" => Value::Other("null"),
            _ if !is_number(word) => return Err(self.error(self.at, format!("`{word}` is no value of JSON"))),
            _ if word.contains(['.', 'e', 'E']) => Value::Real(word.parse().unwrap_or(f64::NAN)),
            _ => Value::Whole(word.parse().ok()),
        };
        self.at += word.len();
        Ok(value)
    }

    fn string(&mut self) -> Result<String, PolicyFileError> {
        let open = self.at;
        self.at += 1;
        let mut string = String::new();
        loop {
            let rest = self.rest();
            let Some(plain) = rest.find(|c: char| matches!(c, '"' | '\\' | ..' ')) else {
                return Err(self.error(open, "unterminated string"));
            };
            string.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => string.push(self.escaped()?),
                _ => return Err(self.error(self.at, "a control character in a string")),
            }
        }
        self.at += 1;
        Ok(string)
    }

    fn escaped(&mut self) -> Result<char, PolicyFileError> {
        let start = self.at;
        self.at += 1;
        let known = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => Some(byte.into()),
            Some(b'b') => Some('\u{8}'),
            Some(b'f') => Some('\u{c}'),
            Some(b'n') => Some('\n'),
            Some(b'r') => Some('\r'),
            Some(b't') => Some('\t'),
            Some(b'u') => {
                self.at -= 1;
                return self
                    .code_point()
                    .ok_or_else(|| self.error(start, "an escape of no character"));
            }
            _ => None,
        };
        self.at += 1;
        known.ok_or_else(|| self.error(start, "an escape that JSON does not have"))
    }

    /// Reads `\u` and its digits: two of them for a character of two units of UTF-16.
    fn code_point(&mut self) -> Option<char> {
        let first = self.utf16_unit()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first.into());
        }
        let both = [first, self.utf16_unit()?];
        char::decode_utf16(both).next()?.ok()
    }

    fn utf16_unit(&mut self) -> Option<u16> {
        let digits = self.rest().strip_prefix("\\u")?.get(..4)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        self.at += 6;
        u16::from_str_radix(digits, 16).ok()
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn error(&self, at: usize, why: impl Into<Box<str>>) -> PolicyFileError {
        PolicyFileError::at(self.text, at, Fault::Syntax { why: why.into() })
    }

    /// The error when something else comes next than `wanted`.
    fn unexpected(&self, wanted: &str) -> PolicyFileError {
        let why = match self.rest().chars().next() {
            None => format!("the file ends before {wanted}"),
            Some('/') => "JSON has no comments".into(),
            Some(other) => format!("{other:?} was given, and {wanted} is expected"),
        };
        self.error(self.at, why)
    }
}

fn is_number(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = word.strip_prefix('-').unwrap_or(word);
    let (decimal, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((decimal, exponent)) => (decimal, exponent.strip_prefix(['+', '-']).unwrap_or(exponent)),
        None => (unsigned, "0"),
    };
    let (whole, fraction) = decimal.split_once('.').unwrap_or((decimal, "0"));
    let is_whole = digits(whole) && (whole == "0" || !whole.starts_with('0'));
    is_whole && digits(fraction) && digits(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(node: &Node) -> String {
        match &node.value {
            Value::Table(entries) => {
                let entry = |entry: &Entry| format!("{}@{}={}", entry.key, entry.at, written(&entry.node));
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(" "))
            }
            Value::List(nodes) => format!("[{}]", nodes.iter().map(written).collect::<Vec<_>>().join(" ")),
            Value::Text(text) => format!("{text:?}"),
            Value::Whole(Some(number)) => number.to_string(),
            Value::Whole(None) => "large".into(),
            Value::Real(number) => format!("{number:?}"),
            Value::Truth(truth) => truth.to_string(),
            Value::Other(kind) => (*kind).into(),
        }
    }

    #[test]
    fn each_kind_of_value_is_read() {
        for (text, expected) in [
            (" {}\r\n", "{}"),
            ("[ ]", "[]"),
            ("[[], {\"a\":{}}]", "[[] {a@6={}}]"),
            ("{ \"a\" : 1 , \"ä\":[true,\tfalse] }", "{a@2=1 ä@12=[true false]}"),
            ("null", "null"),
            ("-0", "0"),
            ("170141183460469231731687303715884105728", "large"),
            ("[0.5, -1e3, 1E+2, 10e-1]", "[0.5 -1000.0 100.0 1.0]"),
            ("1e999", "inf"),
            (r#""\"\\\/\b\f\n\r\t""#, r#""\"\\/\u{8}\u{c}\n\r\t""#),
            (r#""\u00e4\uD83D\ude00 \u0041""#, "\"ä😀 A\""),
            ("\"\u{7f}\u{2028}\"", r#""\u{7f}\u{2028}""#),
        ] {
            let node = json(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(written(&node), expected, "{text}");
        }
    }

    #[test]
    fn what_the_standard_has_not_is_refused() {
        for text in [
            "",
            " ",
            "[",
            "{",
            "[1",
            "[1,",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,",
            "]",
            "[}",
            "{]",
            "[1}",
            "[1 2]",
            "[,]",
            "[1,,2]",
            "[1,]",
            "{,}",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "{\"a\":1 \"b\":2}",
            "{a:1}",
            "{1:1}",
            "{'a':1}",
            "'a'",
            "1 2",
            "{} {}",
            "nul",
            "True",
            "NaN",
            "Infinity",
            "-Infinity",
            "undefined",
            "-",
            "+1",
            "01",
            "-01",
            "1.",
            ".5",
            "1e",
            "1e+",
            "1.e1",
            "0x10",
            "1_000",
            "1e1.5",
            "--1",
            "// a",
            "[] // a",
            "/* a */ 1",
            "# a",
            "\"",
            "\"a",
            "\"\\\"",
            "\"\n\"",
            "\"\t\"",
            "\"\0\"",
            r#""\x41""#,
            r#""\'""#,
            r#""\a""#,
            "\"\\ä\"",
            "\"\\",
            "\"\\\n\"",
            r#""\u""#,
            r#""\u00e""#,
            r#""\u00g0""#,
            r#""\u+0e4""#,
            r#""\u00ä""#,
            r#""\ud83d""#,
            r#""\ud83d\n""#,
            r#""\ud83d\u0041""#,
            r#""\ud83d\ud83d""#,
            r#""\ude00""#,
            r#""\u{41}""#,
            "\u{feff}{}",
            "\u{a0}1",
            "1\u{a0}",
            "\u{c}1",
            "ä",
        ] {
            assert!(json(text).is_err_and(|error| error.is_syntax()), "{text:?}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_at_the_bracket_that_is_too_much() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(json(&nested(MAX_DEPTH)).is_ok());
        assert!(json(&format!("[{}]", vec![nested(MAX_DEPTH - 1); 3].join(","))).is_ok());
        for text in [
            nested(MAX_DEPTH + 1),
            "[".repeat(1_000_000),
            "{\"a\":".repeat(1_000_000),
        ] {
            let column = text.match_indices(['[', '{']).nth(MAX_DEPTH).unwrap().0 + 1;
            let error = json(&text).unwrap_err();
            assert_eq!((error.line(), error.column()), (Some(1), Some(column)), "{error}");
        }
    }
}
