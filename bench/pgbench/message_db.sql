-- Versions count from -1, a stream without messages. message-db locks the stream's category, the name before the first hyphen:
-- each stream has one of its own here, or all of them have :category.
select message_store.write_message(
  gen_random_uuid()::text, :category || :session::text, 'message', :payload, null, :position - 1
);
