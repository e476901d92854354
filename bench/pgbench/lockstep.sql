-- Each client owns a share of the sessions and visits them in turn, so that all of them stand at the same position: what a
-- compare-and-set expects is known without asking.
\set step :step + 1
\set session :first + :client_id + :clients * (:step % (:sessions / :clients))
\set position :step / (:sessions / :clients)
