import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs commands of Kafka's tools one after the other, in one process. A line of the file is a command: its class, its
 * input, and its arguments, between tabs. After the output of a command comes a line "exit code N".
 */
public class KafkaTools {
    private static class Exited extends RuntimeException {
    }

    /** The code with which the command wanted to exit first: it may catch what ends it here, and want another one. */
    private static Integer code;

    public static void main(String[] given) throws Exception {
        Exit.Procedure exit = (wanted, message) -> {
            code = code == null ? wanted : code;
            throw new Exited();
        };
        List<Runnable> hooks = new ArrayList<>();  // some tools close their client in one
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        PrintStream out = System.out;
        for (String line : Files.readAllLines(Path.of(given[0]))) {
            String[] words = line.split("\t", -1);
            System.setIn(new ByteArrayInputStream(words[1].replace("\\n", "\n").getBytes(StandardCharsets.UTF_8)));
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            System.setOut(new PrintStream(said, true));
            System.setErr(new PrintStream(said, true));
            code = null;
            try {
                Class.forName("org.apache.kafka.tools." + words[0]).getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(words, 2, words.length));
            } catch (InvocationTargetException error) {
                if (!(error.getCause() instanceof Exited)) {
                    error.getCause().printStackTrace();
                    code = -1;
                }
            }
            hooks.forEach(Runnable::run);
            hooks.clear();
            out.println(said);
            out.println("exit code " + (code == null ? 0 : code));
        }
        Runtime.getRuntime().halt(0);
    }
}
