//! A client for measurements, over the wire protocol and nothing else.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use agent_sessions_tests::{Database, Role};

/// A client that looks at nothing of the rows: what a driver makes of them would hide what the server takes.
pub struct BareClient {
    stream: BufReader<UnixStream>,
    body: Vec<u8>,
}

impl BareClient {
    pub fn connect(db: &Database, role: &Role) -> BareClient {
        let socket = format!("{}/.s.PGSQL.{}", db.cluster.host, db.cluster.port);
        let stream = BufReader::with_capacity(1 << 16, UnixStream::connect(socket).expect("a server"));
        let mut client = BareClient { stream, body: Vec::new() };
        let user = db.role_name(role);
        let startup = [&196_608_i32.to_be_bytes()[..], &strings(&["user", &user, "database", &db.name, ""])].concat();
        client.send(&sized(&startup));
        client.rows();
        client
    }

    /// Prepares a statement under a name.
    pub fn prepare(&mut self, name: &str, sql: &str) {
        let parse = [&strings(&[name, sql])[..], &0_i16.to_be_bytes()].concat();
        self.send(&[message(b'P', &parse), message(b'S', &[])].concat());
        self.rows();
    }

    /// Executes a prepared statement with parameters as text, and returns how many rows it has.
    pub fn execute(&mut self, name: &str, parameters: &[&str]) -> usize {
        let mut bind = [&strings(&["", name])[..], &0_i16.to_be_bytes()].concat();
        bind.extend((parameters.len() as i16).to_be_bytes());
        for parameter in parameters {
            bind.extend((parameter.len() as i32).to_be_bytes());
            bind.extend(parameter.as_bytes());
        }
        bind.extend(0_i16.to_be_bytes());
        let execute = [&strings(&[""])[..], &0_i32.to_be_bytes()].concat();
        self.send(&[message(b'B', &bind), message(b'E', &execute), message(b'S', &[])].concat());
        self.rows()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the server listens");
    }

    /// Reads up to where the server waits again, and counts the rows.
    fn rows(&mut self) -> usize {
        let mut rows = 0;
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head).expect("an answer");
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4;
            self.body.resize(length, 0);
            self.stream.read_exact(&mut self.body).expect("the whole answer");
            match head[0] {
                b'D' => rows += 1,
                b'E' => panic!("{}", String::from_utf8_lossy(&self.body)),
                b'Z' => return rows,
                _ => {}
            }
        }
    }
}

fn strings(strings: &[&str]) -> Vec<u8> {
    strings.iter().flat_map(|string| string.bytes().chain([0])).collect()
}

fn sized(body: &[u8]) -> Vec<u8> {
    [&(body.len() as i32 + 4).to_be_bytes(), body].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [vec![kind], sized(body)].concat()
}
