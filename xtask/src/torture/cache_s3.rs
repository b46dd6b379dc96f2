//! The remote tier on S3: a server of moto, pinned, on this machine. The client needs many more crates than all the rest,
//! so it is behind the feature `s3`, and a build without it hands this part to one with it.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::paths;
use crate::torture::cache::Bench;

/// Runs the part here, or in a build that can.
pub fn run(bench: &mut Bench, is_asked: bool) -> Result<()> {
    if cfg!(feature = "s3") {
        return server::run(bench);
    }
    if is_asked {
        eprintln!("building with the S3 client");
    }
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--release", "--package", "xtask", "--features", "s3", "--"]);
    command.args(["torture", "cache", "--only", "s3", "--json"]);
    let output = command.current_dir(paths::root()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().last() {
        Some(line) => bench.adopt(line),
        None => bail!("the build with the S3 client ended with {}", output.status),
    }
}

mod server {
    //! The server and its client's options.

    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use anyhow::{Result, ensure};

    use crate::torture::cache::Bench;
    use crate::torture::cache_child::Store;
    use crate::torture::cache_remote::{Compiles, machines};
    use crate::venv;

    const REQUIREMENTS: &str = include_str!("../../python/requirements_s3.txt");
    const BUCKET: &str = "precast";
    /// How long the server may take to start.
    const PATIENCE: Duration = Duration::from_secs(60);

    pub(super) fn run(bench: &mut Bench) -> Result<()> {
        let server = Server::start()?;
        let pairs = [
            ("aws_access_key_id", "test".to_string()),
            ("aws_secret_access_key", "test".to_string()),
            ("aws_region", "us-east-1".to_string()),
            ("aws_endpoint", format!("http://127.0.0.1:{}", server.port)),
            ("aws_allow_http", "true".to_string()),
        ];
        let pairs: Vec<(String, String)> = pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        let rounds = bench.count(10, 2);
        machines(bench, "S3", Compiles::OnceInAll, rounds, |_, round| {
            Ok(Store::Url(format!("s3://{BUCKET}/round-{round}"), pairs.clone()))
        })
    }

    /// A server, as long as it lives.
    struct Server {
        child: Child,
        port: u16,
    }

    impl Server {
        fn start() -> Result<Server> {
            let python = venv::python_with("venv-s3", REQUIREMENTS)?;
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut command = Command::new(python);
            command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()]);
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            let server = Server { child, port };
            let begun = Instant::now();
            while !server.make_bucket().unwrap_or(false) {
                ensure!(begun.elapsed() < PATIENCE, "the S3 server does not answer");
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(server)
        }

        /// Puts the bucket; true once it is there.
        fn make_bucket(&self) -> Result<bool> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            let host = format!("127.0.0.1:{}", self.port);
            write!(stream, "PUT /{BUCKET} HTTP/1.0\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer.lines().next().is_some_and(|line| line.contains(" 200 ")))
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            // It may have ended already, which is as good.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
