//! A small HTTP client for the admin REST interface.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Sends one request to `base` (`http://host:port`) and follows redirects, as brokers send them to the owner of a bundle.
pub(crate) async fn request(
    base: &str,
    method: &str,
    path: &str,
    body: Option<&str>,
) -> Result<Answer, String> {
    let mut url = format!("{base}{path}");
    for _ in 0..REDIRECTS {
        let exchanged = timeout(TIMEOUT, exchange(&url, method, body)).await;
        let (head, body) = exchanged
            .map_err(|_| format!("{method} {url}: no answer"))?
            .map_err(|error| format!("{method} {url}: {error}"))?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .ok_or_else(|| format!("{method} {url}: no HTTP"))?;
        match header(&head, "location") {
            Some(location) if (300..400).contains(&status) => url = location.to_owned(),
            _ => return Ok(Answer { status, body }),
        }
    }
    Err(format!("{method} {url}: redirected too often"))
}

async fn exchange(
    url: &str,
    method: &str,
    body: Option<&str>,
) -> std::io::Result<(String, Vec<u8>)> {
    let rest = url.trim_start_matches("http://");
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let mut stream = TcpStream::connect(host).await?;
    let body = body.unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .ok_or(std::io::ErrorKind::InvalidData)?;
    let body = answer.split_off(end + 4);
    let head = String::from_utf8_lossy(&answer).into_owned();
    let is_chunked = header(&head, "transfer-encoding").is_some_and(|value| value == "chunked");
    Ok((head, if is_chunked { unchunk(&body) } else { body }))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = body.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&body[..end])
            .ok()
            .and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let Some(size) = size.filter(|size| *size > 0 && end + 2 + size <= body.len()) else {
            break;
        };
        out.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = body.get(end + 2 + size + 2..).unwrap_or_default();
    }
    out
}

const REDIRECTS: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(30);
