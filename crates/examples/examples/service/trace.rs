//! The mix of clients and paths of a real web server, as a loop without times.

use std::error::Error;
use std::path::Path;

pub(crate) struct Hit {
    pub(crate) client: u32,
    pub(crate) path: String,
}

/// Reads `client` and `path` of each line of the gzipped trace.
pub(crate) fn read(path: &Path) -> Result<Vec<Hit>, Box<dyn Error>> {
    let file = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut reader = csv::Reader::from_reader(flate2::read::GzDecoder::new(file));
    let titles = reader.headers()?.clone();
    let column = |name: &str| {
        let found = titles.iter().position(|title| title == name);
        found.ok_or_else(|| format!("{}: the column `{name}` is missing", path.display()))
    };
    let (client, target) = (column("client")?, column("path")?);
    let mut hits = Vec::new();
    for (record, line) in reader.records().zip(2..) {
        let record = record?;
        let client = record.get(client).and_then(|client| client.parse().ok());
        let client = client.ok_or_else(|| format!("{}:{line}: no client", path.display()))?;
        // What is no path (clients send anything) asks for the front page.
        let target = record
            .get(target)
            .filter(|path| path.parse::<http::uri::PathAndQuery>().is_ok());
        let path = target.filter(|path| path.starts_with('/')).unwrap_or("/").to_owned();
        hits.push(Hit { client, path });
    }
    if hits.is_empty() {
        return Err(format!("{}: no requests", path.display()).into());
    }
    Ok(hits)
}
