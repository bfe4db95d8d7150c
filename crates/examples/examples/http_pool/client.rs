//! A blocking HTTP client of one host, with kept-alive connections that all threads share.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// An answer with this status.
    Status(u16),
    /// The server closed the connection without an answer.
    HungUp,
    /// Anything else.
    Failed,
}

pub(crate) struct Client {
    address: SocketAddr,
    idle: Mutex<Vec<BufReader<TcpStream>>>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// Sends one request and reads the answer. The connection is kept when the answer was whole.
    pub(crate) fn get(&self, id: u32) -> Outcome {
        let idle = self.idle.lock().expect("no panic under the lock").pop();
        let connection = idle.map_or_else(|| self.connect(), Ok);
        let answered = connection.and_then(|mut connection| Ok((exchange(&mut connection, id)?, connection)));
        match answered {
            Ok((status, connection)) => {
                self.idle.lock().expect("no panic under the lock").push(connection);
                Outcome::Status(status)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Outcome::HungUp,
            Err(_) => Outcome::Failed,
        }
    }

    fn connect(&self) -> io::Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        Ok(BufReader::new(stream))
    }
}

fn exchange(connection: &mut BufReader<TcpStream>, id: u32) -> io::Result<u16> {
    let request = format!("GET /items/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let (status, length) = read_head(connection)?;
    let mut body = vec![0; length];
    connection.read_exact(&mut body)?;
    Ok(status)
}

/// The status and the length of the body.
fn read_head(connection: &mut impl BufRead) -> io::Result<(u16, usize)> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let (mut status, mut length, mut line) = (None, 0, String::new());
    loop {
        line.clear();
        if connection.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = line.trim_end();
        if text.is_empty() {
            return Ok((status.ok_or_else(invalid)?, length));
        }
        if status.is_none() {
            status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
        } else if let Some((name, value)) = text.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(|_| invalid())?;
        }
    }
}
